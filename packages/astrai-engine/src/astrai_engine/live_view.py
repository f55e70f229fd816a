"""Samples the engine for whoever watches it; costs nothing while nobody does.

All of it runs on the engine's thread, between two steps, so a frame is consistent and needs no
lock. A frame that takes long to make (of a very large pool) is followed by a longer pause: making
frames takes a five-hundredth of the thread's time at most.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, thread_time
from typing import Protocol

from astrai_engine.events import FinishReason
from astrai_engine.live_frame import (
    EndedRequest,
    LiveFrame,
    LiveRequest,
    LiveStep,
    LiveTotals,
    PromptChunk,
)
from astrai_engine.metrics import EngineCounters
from astrai_engine.scheduler import ScheduledSequence, Scheduler
from astrai_engine.sequence import Sequence as TokenSequence

logger = logging.getLogger(__name__)

FRAME_SECONDS = 0.25
MAX_REQUESTS = 128
MAX_PAGES = 16_384
_REST = 500
_EQUAL_BYTES = re.compile(rb"(.)\1*", re.DOTALL)


class FrameSink(Protocol):
    """Where the frames of one watcher go."""

    def deliver(self, frame: LiveFrame | None) -> bool:
        """Take a frame, or None for the end, at once; False when nobody can be reached."""
        ...


class LiveView:
    """Makes frames while there are watchers.

    Args:
        scheduler: whose sequences and cache are shown.
        counters: of the engine.
        clock: seconds, as ``time.monotonic``.
        cpu_clock: seconds that the thread has computed, as ``time.thread_time``: a frame is not
            to blame for what else the machine does meanwhile.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        counters: EngineCounters,
        *,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._started_at = clock()
        self._watchers: list[FrameSink] = []
        self._number = 0
        self._due = 0.0
        self._has_news = False
        self._ends_when_idle = False
        self._num_generated = 0
        self._steps: list[LiveStep] = []
        self._ended: list[EndedRequest] = []

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches; nothing has to be noted otherwise."""
        return bool(self._watchers)

    def add(self, watcher: FrameSink) -> None:
        """Let somebody watch; the first frame comes after the step that runs."""
        if not self._watchers:
            self._num_generated = self._counters.generated_tokens
        self._watchers.append(watcher)
        self._due = 0.0
        self._has_news = True

    def remove(self, watcher: FrameSink) -> None:
        """Forget a watcher; harmless when it is gone already."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if not self._watchers:
            self._steps.clear()
            self._ended.clear()

    def note_step(self, batch: Sequence[ScheduledSequence], seconds: float) -> None:
        """Note a step that has just ended, and send a frame if it is time for one."""
        now = self._clock()
        self._has_news = True
        chunks = tuple(
            PromptChunk(item.sequence.task_id, item.num_tokens, item.samples)
            for item in batch
            if not item.is_decode or item.sequence.num_generated == 1
        )
        total, known = self._counters.generated_tokens, self._num_generated
        self._num_generated = total
        self._steps.append(
            LiveStep(
                ended_at=self._since_start(now),
                seconds=round(seconds, 6),
                num_decoding=len(batch) - len(chunks),
                num_drafted=sum(len(item.draft) for item in batch),
                num_generated=total - known,
                chunks=chunks,
            )
        )
        if now >= self._due:
            self._send()

    def note_end(self, sequence: TokenSequence, reason: FinishReason) -> None:
        """Note that a sequence has ended."""
        self._has_news = True
        self._ended.append(
            EndedRequest(
                task_id=sequence.task_id,
                request_id=sequence.request.request_id,
                reason=reason,
                submitted_at=self._since_start(sequence.submitted_at),
                ended_at=self._since_start(self._clock()),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_cached=sequence.num_cached or 0,
                num_generated=sequence.num_generated,
            )
        )

    def end_when_idle(self) -> None:
        """Tell the watchers that it is over once nothing runs any more."""
        self._ends_when_idle = True

    def rest(self) -> None:
        """The engine is about to sleep: send what no frame has shown so far."""
        if self._watchers and self._has_news:
            self._send()
        if self._ends_when_idle:
            self.close()

    def close(self) -> None:
        """Tell the watchers that it is over."""
        for watcher in self._watchers:
            watcher.deliver(None)
        self._watchers.clear()
        self._steps.clear()
        self._ended.clear()

    def _send(self) -> None:
        """Send a frame. A fault in making one ends the view and leaves the engine alone."""
        start = self._cpu_clock()
        try:
            frame = self._frame(self._clock())
        except Exception:
            logger.exception("The live view failed; its watchers are sent away.")
            self.close()
            return
        for watcher in list(self._watchers):
            if not watcher.deliver(frame):
                self.remove(watcher)
        self._has_news = False
        cost = self._cpu_clock() - start
        self._due = self._clock() + max(FRAME_SECONDS, cost * _REST)

    def _frame(self, now: float) -> LiveFrame:
        scheduler = self._scheduler
        states = scheduler.cache.page_states()
        stride = -(-len(states) // MAX_PAGES)
        num_more = max(MAX_REQUESTS - len(scheduler.running), 0)
        self._number += 1
        frame = LiveFrame(
            number=self._number,
            at=self._since_start(now),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            requests=(
                *(self._request(s, is_running=True) for s in scheduler.running[:MAX_REQUESTS]),
                *(self._request(s, is_running=False) for s in scheduler.waiting[:num_more]),
            ),
            ended=tuple(self._ended),
            steps=tuple(self._steps),
            num_pages=len(states),
            page_stride=stride,
            page_states=state_runs(states[::stride]),
            totals=self._totals(),
        )
        self._ended.clear()
        self._steps.clear()
        return frame

    def _request(self, sequence: TokenSequence, *, is_running: bool) -> LiveRequest:
        pages = self._scheduler.cache.task_pages(sequence.task_id) if is_running else []
        return LiveRequest(
            task_id=sequence.task_id,
            request_id=sequence.request.request_id,
            is_running=is_running,
            submitted_at=self._since_start(sequence.submitted_at),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached=sequence.num_cached or 0,
            num_computed=sequence.num_computed,
            num_generated=sequence.num_generated,
            max_tokens=sequence.max_tokens,
            page_runs=page_runs(pages),
        )

    def _totals(self) -> LiveTotals:
        counters = self._counters
        return LiveTotals(
            steps=counters.steps,
            generated_tokens=counters.generated_tokens,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            preemptions=self._scheduler.num_preemptions,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
        )

    def _since_start(self, at: float) -> float:
        """Seconds since the engine started, without the digits below microseconds."""
        return round(at - self._started_at, 6)


def state_runs(states: bytes) -> tuple[tuple[int, int], ...]:
    """Bytes as runs of equal ones: ``(byte, how many)``."""
    runs = (match.group() for match in _EQUAL_BYTES.finditer(states))
    return tuple((run[0], len(run)) for run in runs)


def page_runs(pages: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Pages as runs of consecutive ones: ``(first page, number of pages)``."""
    runs: list[tuple[int, int]] = []
    first, end = 0, 0
    for page in pages:
        if page == end and end:
            end += 1
            continue
        if end:
            runs.append((first, end - first))
        first, end = page, page + 1
    if end:
        runs.append((first, end - first))
    return tuple(runs)
