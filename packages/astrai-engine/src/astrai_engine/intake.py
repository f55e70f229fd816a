"""Where requests enter: prompt to tokens, a place in the queue, one sequence a choice."""

import itertools
import secrets
from dataclasses import dataclass
from time import monotonic

from astrai_engine.admission import Admission
from astrai_engine.assembly import EngineParts
from astrai_engine.constraint import Constraint
from astrai_engine.delivery import EventSink
from astrai_engine.errors import InvalidRequestError
from astrai_engine.generation import Generation
from astrai_engine.loop import InferenceScheduler
from astrai_engine.prompt import EncodedPrompt
from astrai_engine.request import GenerationRequest
from astrai_engine.sequence import Sequence
from astrai_engine.visible_tokens import VisibleTokens
from astrai_kernels import requested_backend, select_backend


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been found possible.

    Attributes:
        request: what to generate.
        prompt: its prompt.
        constraint: its grammar, compiled; None without one.
    """

    request: GenerationRequest
    prompt: EncodedPrompt
    constraint: Constraint | None


class Intake:
    """Turns requests into running generations.

    Args:
        parts: the engine's parts.
        loop: runs the generations.
        admission: bounds how many there are.
    """

    def __init__(self, parts: EngineParts, loop: InferenceScheduler, admission: Admission) -> None:
        self._parts = parts
        self._loop = loop
        self._admission = admission
        self._numbers = itertools.count()

    def new_id(self) -> str:
        """A request id that no other request of this engine has."""
        return f"req-{next(self._numbers)}"

    def check(self, request: GenerationRequest) -> None:
        """Refuse now what :meth:`start` would refuse, before the prompt is tokenised.

        Raises:
            QueueFullError: too many requests wait.
            EngineUnavailableError: the engine is shutting down.
        """
        self._admission.check(request.n)

    def prepare(self, request: GenerationRequest) -> Prepared:
        """Tokenise the prompt and compile the grammar; slow enough to keep off an event loop.

        Raises:
            RequestError: the request can never be served as it stands.
        """
        prompt = self._parts.prompts.encode(request)
        constraint = None
        if request.grammar is not None:
            constraint = self._parts.grammars.compile(
                request.grammar, prompt_end=prompt.end, visible=self._visible(request)
            )
        return Prepared(request, prompt, constraint)

    def start(
        self, prepared: Prepared, request_id: str, sink: EventSink, *, wait: bool = False
    ) -> None:
        """Queue a request, with the attention backend that the caller's context asks for.

        Args:
            prepared: from :meth:`prepare`; used once.
            request_id: from :meth:`new_id`.
            sink: gets its events.
            wait: block until the queue has a place, rather than refuse.

        Raises:
            QueueFullError: too many requests wait.
            EngineUnavailableError: the engine is shutting down or lost.
            BackendUnavailableError: the backend was chosen strictly and can't run.
            InvalidRequestError: it was chosen strictly, and several processes run the model.
        """
        request, prompt_ids = prepared.request, prepared.prompt.token_ids
        choice = requested_backend()
        # A strict choice that can't run here is refused before anything is queued.
        select_backend(self._parts.device, choice=choice)
        if choice is not None and choice.strict and self._parts.crew is not None:
            raise InvalidRequestError(
                "A strict choice of attention backend needs tensor_parallel_size 1: refusing a "
                "step in one process would leave the others waiting. Choose it without strict."
            )
        self._admission.enter(request.n, self._loop.counters.seconds_per_request, wait=wait)
        sequences: list[Sequence] = []
        seed = secrets.randbits(63) if request.seed is None else request.seed
        arrival, submitted_at = next(self._numbers), monotonic()
        max_tokens = self._parts.prompts.max_new_tokens(request, len(prompt_ids))
        for index in range(request.n):
            sequences.append(
                Sequence(
                    task_id=f"{request_id}.{index}",
                    request_id=request_id,
                    request=request,
                    index=index,
                    token_ids=list(prompt_ids),
                    num_prompt_tokens=len(prompt_ids),
                    max_tokens=max_tokens,
                    arrival=arrival,
                    seed=seed,
                    submitted_at=submitted_at,
                    position_offset=self._parts.position_offset(len(prompt_ids) + max_tokens),
                    backend=choice,
                    constraint=_copy(prepared.constraint, max_tokens),
                    leader=sequences[0] if sequences else None,
                )
            )
        try:
            self._loop.submit(self._generation(sequence, sink) for sequence in sequences)
        except BaseException:
            self._admission.leave(request.n)
            raise

    def _visible(self, request: GenerationRequest) -> dict[str, int]:
        """Ids of the special tokens that the text shows, by their text; none that may end it."""
        ends = self._parts.eos_token_ids.union(request.stop_token_ids)
        special = self._parts.tokenizer.special_token_ids
        found = (
            (t, self._parts.tokenizer.added_token_id(t)) for t in request.visible_special_tokens
        )
        return {text: i for text, i in found if i in special and i not in ends}

    def _generation(self, sequence: Sequence, sink: EventSink) -> Generation:
        return Generation(
            sequence,
            sink,
            tokenizer=VisibleTokens(self._parts.tokenizer, self._visible(sequence.request)),
            eos_token_ids=self._parts.eos_token_ids,
        )


def _copy(constraint: Constraint | None, max_tokens: int) -> Constraint | None:
    """Every choice goes its own way through the grammar."""
    return None if constraint is None else constraint.copy(max_tokens)
