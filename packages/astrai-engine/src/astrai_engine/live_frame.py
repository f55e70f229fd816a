"""What a live view of the engine shows. Plain data: no torch, no text of any request."""

from dataclasses import dataclass

from astrai_engine.events import FinishReason


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prompt tokens of one sequence that ran in a step.

    Attributes:
        task_id: the sequence.
        num_tokens: how many of its tokens ran.
        is_last: the step also gave the sequence its next token, usually its first.
    """

    task_id: str
    num_tokens: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class LiveStep:
    """One step.

    Attributes:
        ended_at: seconds since the engine started.
        seconds: how long it took.
        num_decoding: sequences that decoded.
        num_drafted: guessed tokens that ran with them.
        num_generated: tokens that came of it.
        chunks: the prompt tokens that ran.
    """

    ended_at: float
    seconds: float
    num_decoding: int
    num_drafted: int
    num_generated: int
    chunks: tuple[PromptChunk, ...]


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One choice of a request that runs or waits.

    Attributes:
        task_id: unique in the engine.
        request_id: the caller's own id, if it has one.
        is_running: it holds pages; else it waits.
        submitted_at: seconds since the engine started.
        num_prompt_tokens: tokens of its prompt.
        num_cached: those reused when it was first admitted; 0 before.
        num_computed: tokens, generated ones too, whose K/V exist.
        num_generated: tokens generated so far.
        max_tokens: most tokens it may generate.
        page_runs: its pages in order, as ``(first page, number of pages)``.
    """

    task_id: str
    request_id: str | None
    is_running: bool
    submitted_at: float
    num_prompt_tokens: int
    num_cached: int
    num_computed: int
    num_generated: int
    max_tokens: int
    page_runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One choice that ended since the frame before.

    Attributes:
        task_id: unique in the engine.
        request_id: the caller's own id, if it has one.
        reason: why it ended.
        submitted_at: seconds since the engine started.
        ended_at: seconds since the engine started.
        num_prompt_tokens: tokens of its prompt.
        num_cached: those reused when it was first admitted.
        num_generated: tokens generated.
    """

    task_id: str
    request_id: str | None
    reason: FinishReason
    submitted_at: float
    ended_at: float
    num_prompt_tokens: int
    num_cached: int
    num_generated: int


@dataclass(frozen=True, slots=True)
class LiveTotals:
    """Counters since the engine started.

    Attributes:
        steps: forward passes.
        generated_tokens: tokens generated.
        prompt_tokens: prompt tokens of choices that ended.
        cached_tokens: the part of them that was reused.
        preemptions: times a running sequence gave its pages back.
        drafted_tokens: guesses of tokens that were checked.
        accepted_tokens: the part of them that was right.
    """

    steps: int
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """The engine at one moment, and what happened since the frame before.

    Attributes:
        number: counts the frames of an engine; whoever misses one sees a gap.
        at: seconds since the engine started.
        num_running: sequences that hold pages.
        num_waiting: sequences that wait.
        requests: the running ones, then the waiting ones in order; the first 128 of them.
        ended: choices that ended since the frame before.
        steps: what ran since the frame before.
        num_pages: pages in the pool.
        page_stride: every ``page_stride``-th page is in ``page_states``; 1 unless the pool is
            very large.
        page_states: runs of equal pages as ``(state, number of pages)``: 0 is free, 1 cached,
            ``1 + users`` in use.
        totals: counters since the engine started.
    """

    number: int
    at: float
    num_running: int
    num_waiting: int
    requests: tuple[LiveRequest, ...]
    ended: tuple[EndedRequest, ...]
    steps: tuple[LiveStep, ...]
    num_pages: int
    page_stride: int
    page_states: tuple[tuple[int, int], ...]
    totals: LiveTotals
