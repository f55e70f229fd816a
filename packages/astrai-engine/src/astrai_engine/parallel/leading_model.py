"""The model of rank 0: tells the others of a step before it runs it."""

from torch import Tensor

from astrai_engine.executor import LanguageModel
from astrai_engine.parallel.crew import Crew
from astrai_engine.parallel.step import Step, encode
from astrai_kernels import AttentionBackend, AttentionCache


class LeadingModel:
    """Runs each step together with the crew.

    A step that fails on one rank leaves the others waiting in the middle of it, with nothing to
    wake them but their end: so it is the end of the crew.

    Args:
        model: rank 0's share.
        crew: the other ranks, connected.
        page_size: slots in a page of the pool.
    """

    def __init__(self, model: LanguageModel, crew: Crew, page_size: int) -> None:
        self._model = model
        self._crew = crew
        self._page_size = page_size

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: Tensor | None = None,
    ) -> Tensor:
        """Compute logits of packed tokens; see `LlamaModel.forward`.

        Raises:
            EngineUnavailableError: a rank is lost; all are ended.
        """
        step = Step(input_ids, position_ids, cache, backend.name, logit_rows)
        content = encode(step, self._page_size)
        try:
            self._crew.announce(content)
            return self._model.forward(
                input_ids, position_ids, cache, backend, logit_rows=logit_rows
            )
        except Exception as error:
            raise self._crew.lost(f"a step failed ({error}).") from error
