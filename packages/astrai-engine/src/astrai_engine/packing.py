"""The tokens of a step, packed one sequence after the other, and the logits it needs."""

from collections.abc import Sequence as Batch
from dataclasses import dataclass, field

from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Consecutive prompt positions whose next token is scored."""

    sequence: Sequence
    positions: range

    @property
    def next_tokens(self) -> list[int]:
        """The token after each position."""
        return self.sequence.token_ids[self.positions.start + 1 : self.positions.stop + 1]


@dataclass(slots=True)
class PackedStep:
    """What a forward pass computes.

    Attributes:
        token_ids: packed tokens.
        position_ids: the position of each, plus its sequence's offset.
        num_tokens: tokens of each sequence.
        sampling: sequences that get a new token; one that checks guesses is there once for each
            token it may get, as it will be when that one's turn comes.
        sampling_rows: the packed token whose logits each of them is drawn from.
        scored: prompt positions to score.
        scored_rows: the packed token of each of those positions.
    """

    token_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    sampling: list[Sequence] = field(default_factory=list)
    sampling_rows: list[int] = field(default_factory=list)
    scored: list[ScoredSpan] = field(default_factory=list)
    scored_rows: list[int] = field(default_factory=list)

    @property
    def is_decode(self) -> bool:
        """Whether every sequence computes one token and draws one after it, and that is all."""
        return len(self.token_ids) == len(self.num_tokens) == len(self.sampling_rows) and not (
            self.scored_rows
        )


def pack_step(batch: Batch[ScheduledSequence]) -> PackedStep:
    """Pack the scheduled tokens of a batch."""
    step = PackedStep()
    for item in batch:
        sequence = item.sequence
        offset = len(step.token_ids)
        start, end = sequence.num_computed, sequence.num_computed + item.num_tokens
        num_tokens = item.num_tokens + len(item.draft)
        first = start + sequence.position_offset
        if num_tokens == 1:
            step.token_ids.append(sequence.token_ids[start])
            step.position_ids.append(first)
        else:
            step.token_ids += sequence.token_ids[start:end]
            step.token_ids += item.draft
            step.position_ids += range(first, first + num_tokens)
        step.num_tokens.append(num_tokens)
        if item.samples:
            step.sampling.append(sequence)
            step.sampling += [sequence.after(item.draft[: n + 1]) for n in range(len(item.draft))]
            step.sampling_rows += range(offset + item.num_tokens - 1, len(step.token_ids))
        positions = _unscored(sequence, start, end)
        if positions:
            step.scored.append(ScoredSpan(sequence, positions))
            step.scored_rows += [offset + position - start for position in positions]
    return step


def _unscored(sequence: Sequence, start: int, end: int) -> range:
    """Positions of this chunk to score: those scored before a preemption are done."""
    if not sequence.scores_prompt:
        return range(0)
    first = max(start, len(sequence.prompt_logprobs))
    return range(first, min(end, sequence.num_prompt_tokens - 1))
