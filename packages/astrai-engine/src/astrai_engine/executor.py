"""Runs one step on the device: bind, forward, sample."""

from collections.abc import Sequence as Batch
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from astrai_engine.constraint import TokenMasks
from astrai_engine.decode_graphs import DecodeGraphs, Recorder
from astrai_engine.packing import PackedStep, ScoredSpan, pack_step
from astrai_engine.sampling.logprobs import score_tokens
from astrai_engine.sampling.sampler import SampledToken, Sampler
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.stopwatch import Stopwatch
from astrai_engine.verification import confirmed, decode_rows
from astrai_engine.workspace import InferenceWorkspace
from astrai_kernels import (
    AttentionBackend,
    AttentionCache,
    AttentionShape,
    BackendChoice,
    select_backend,
)
from astrai_kvcache import PagePool


class LanguageModel(Protocol):
    """What running a step needs of a model."""

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[rows, vocab]`` float32 of the packed tokens that ``logit_rows`` names."""
        ...


@runtime_checkable
class GreedyModel(LanguageModel, Protocol):
    """A model that can find likeliest tokens without giving logits."""

    def likeliest(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: Tensor | None = None,
    ) -> tuple[list[float], list[int]]:
        """The largest of each row of `forward`'s logits, and its token."""
        ...


class ModelExecutor:
    """Owns the model and what its forward pass needs.

    Args:
        model: computes logits.
        pool: holds K/V.
        workspace: the step's buffers.
        sampler: chooses tokens.
        masks: computes what grammars allow, while the forward pass runs.
    """

    def __init__(
        self,
        model: LanguageModel,
        pool: PagePool,
        workspace: InferenceWorkspace,
        sampler: Sampler,
        masks: TokenMasks,
    ) -> None:
        self._model = model
        self._greedy = _greedy_on_cpu(model, workspace.device)
        self._pool = pool
        self._workspace = workspace
        self._sampler = sampler
        self._masks = masks
        self._backends: dict[BackendChoice | None, AttentionBackend] = {}
        self._graphs: DecodeGraphs | None = None

    def load_kernels(self, shape: AttentionShape) -> str | None:
        """Have the attention backend build and load what the model's steps will need.

        Args:
            shape: what the model's calls have in common.

        Returns:
            Why `record_decode` must not be called, as a sentence; None when it may.
        """
        return self._backend(None).warmup(shape)

    @torch.inference_mode()
    def record_decode(self, recorder: Recorder) -> None:
        """Record decode steps once for each padded batch size; later ones are replayed.

        Args:
            recorder: makes the recordings.
        """
        backend = self._backend(None)

        def forward(input_ids: Tensor, position_ids: Tensor, cache: AttentionCache) -> Tensor:
            return self._model.forward(input_ids, position_ids, cache, backend)

        graphs = DecodeGraphs(forward, self._workspace, recorder, self._pool.max_seq_len)
        graphs.record(self._pool.bind_tasks([], self._workspace))
        self._graphs = graphs

    def close(self) -> None:
        """End the threads that help a step."""
        self._masks.close()

    @torch.inference_mode()
    def execute(
        self, batch: Batch[ScheduledSequence], stopwatch: Stopwatch
    ) -> list[list[SampledToken]]:
        """Compute a step.

        Sequences that chose different attention backends run as separate passes. Prompt
        positions that are to be scored get their log-probabilities on the sequence itself.

        Args:
            batch: whose tokens run; their slots are reserved.
            stopwatch: gets the laps bind, forward and sample. On a GPU the forward pass is only
                launched in its lap, and waited for in the next.

        Returns:
            The new tokens of each part of the batch that samples, in order: one, and one more
            for each guess that was right.
        """
        passes: dict[BackendChoice | None, list[ScheduledSequence]] = {}
        for item in batch:
            passes.setdefault(item.sequence.backend, []).append(item)
        sampled: dict[str, list[SampledToken]] = {}
        for choice, items in passes.items():
            sampled.update(self._execute_pass(items, choice, stopwatch))
        return [sampled[item.sequence.task_id] for item in batch if item.samples]

    def _execute_pass(
        self,
        batch: list[ScheduledSequence],
        choice: BackendChoice | None,
        stopwatch: Stopwatch,
    ) -> dict[str, list[SampledToken]]:
        step = pack_step(batch)
        cache = self._pool.bind_tasks(
            [item.sequence.task_id for item in batch],
            self._workspace,
            q_lens=None if step.is_decode else step.num_tokens,
        )
        if any(item.draft for item in batch):
            cache = decode_rows(cache, batch)
        input_ids, positions = self._workspace.load_tokens(step.token_ids, step.position_ids)
        inputs = _Inputs(input_ids, positions, cache)
        tokens = iter(self._run(step, inputs, choice, stopwatch))
        stopwatch.lap("sample")
        return {
            item.sequence.task_id: confirmed(item.draft, list(islice(tokens, 1 + len(item.draft))))
            for item in batch
            if item.samples
        }

    def _run(
        self,
        step: PackedStep,
        inputs: "_Inputs",
        choice: BackendChoice | None,
        stopwatch: Stopwatch,
    ) -> list[SampledToken]:
        """Run the model, score prompts and choose tokens."""
        masks = self._masks.start([sequence.constraint for sequence in step.sampling])
        stopwatch.lap("bind")
        rows = None if step.is_decode else self._rows(step.sampling_rows + step.scored_rows)
        if self._greedy is not None and masks is None and self._wants_only_likeliest(step):
            found = self._greedy.likeliest(*inputs, self._backend(choice), logit_rows=rows)
            stopwatch.lap("forward")
            return self._sampler.take(*found)
        if step.is_decode and choice is None and self._graphs is not None:
            logits = self._graphs.run(len(step.sampling))
        else:
            logits = self._model.forward(*inputs, self._backend(choice), logit_rows=rows)
        stopwatch.lap("forward")
        num_sampling = len(step.sampling)
        _score(step.scored, logits[num_sampling:])
        forbidden = masks.result() if masks is not None else None
        return self._sampler.sample(logits[:num_sampling], step.sampling, forbidden)

    def _wants_only_likeliest(self, step: PackedStep) -> bool:
        return (
            self._graphs is None
            and not step.scored
            and self._sampler.wants_only_likeliest(step.sampling)
        )

    def _rows(self, wanted: list[int]) -> Tensor:
        return torch.tensor(wanted, dtype=torch.long, device=self._workspace.device)

    def _backend(self, choice: BackendChoice | None) -> AttentionBackend:
        """The backend for a choice, selected the first time it is asked for."""
        backend = self._backends.get(choice)
        if backend is None:
            selection = select_backend(self._workspace.device, choice=choice)
            backend = self._backends[choice] = selection.backend
        return backend


class _Inputs(NamedTuple):
    input_ids: Tensor
    position_ids: Tensor
    cache: AttentionCache


def _greedy_on_cpu(model: LanguageModel, device: torch.device) -> GreedyModel | None:
    """The model, where it may find likeliest tokens itself; on a GPU a kernel finds them."""
    return model if device.type == "cpu" and isinstance(model, GreedyModel) else None


def _score(spans: list[ScoredSpan], logits: Tensor) -> None:
    """Append what the model thought of the prompt to each sequence."""
    start = 0
    for span in spans:
        rows = logits[start : start + len(span.positions)]
        num_top = span.sequence.request.prompt_logprobs or 0
        span.sequence.prompt_logprobs += score_tokens(rows, span.next_tokens, num_top)
        start += len(span.positions)
