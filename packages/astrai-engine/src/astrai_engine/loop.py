"""The engine's thread: the only one that touches the scheduler, the cache and the model.

    schedule -> execute (bind, forward, sample) -> commit -> emit

Everybody else talks to it through its inbox. When there is no work it sleeps on the inbox and
costs nothing.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Protocol, TypeAlias

from astrai_engine.delivery import EventSink, Outbox
from astrai_engine.errors import (
    AstraiError,
    DeadlineExceededError,
    EngineUnavailableError,
    GenerationError,
)
from astrai_engine.events import Failed, Finished, FinishReason
from astrai_engine.generation import Ending, Generation
from astrai_engine.live_view import FrameSink, LiveView
from astrai_engine.metrics import EngineCounters
from astrai_engine.sampling.sampler import SampledToken
from astrai_engine.scheduler import ScheduledSequence, Scheduler
from astrai_engine.stopwatch import Stopwatch
from astrai_engine.trace import StepRecord, StepTrace

logger = logging.getLogger(__name__)


class StepExecutor(Protocol):
    """Runs one step on the device."""

    def execute(
        self, batch: Sequence[ScheduledSequence], stopwatch: Stopwatch
    ) -> list[list[SampledToken]]:
        """Compute ``batch``; gives the new tokens of each part of it that samples, in order.

        They are one, and one more for each guess that was right.
        """
        ...


Command: TypeAlias = Callable[[], None]


class InferenceScheduler:
    """Runs generations in a daemon thread until it is stopped.

    Args:
        scheduler: the policy.
        executor: the model.
        on_closed: called once for each generation that ended, on the loop's thread.

    Attributes:
        counters: totals since the start.
        trace: gets a record of each step while it is set.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: StepExecutor,
        *,
        on_closed: Callable[[Generation], None] = lambda _: None,
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self.counters = EngineCounters()
        self.trace: StepTrace | None = None
        self._scheduler = scheduler
        self._executor = executor
        self._on_closed = on_closed
        self._on_stopped = on_stopped
        self._generations: dict[str, Generation] = {}
        self._live = LiveView(scheduler, self.counters)
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._stopping = False
        self._gate = threading.Lock()
        self._lost: EngineUnavailableError | None = None
        self._error: AstraiError | None = None
        self._thread = threading.Thread(target=self._run, name="astrai-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs and can take work."""
        return self._thread.is_alive() and self._error is None

    @property
    def num_running(self) -> int:
        """Sequences that hold pages."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for pages or for a place in the batch."""
        return len(self._generations) - len(self._scheduler.running)

    @property
    def num_preemptions(self) -> int:
        """Times a running sequence had to give its pages back."""
        return self._scheduler.num_preemptions

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, generations: Iterable[Generation]) -> None:
        """Queue the generations of one request; their events go to their sinks.

        Raises:
            EngineUnavailableError: the loop has ended.
        """
        batch = list(generations)
        with self._gate:
            if self._error is not None:
                raise self._error
            self._inbox.put(lambda: self._add(batch))

    def lose(self, error: EngineUnavailableError) -> None:
        """End the loop, since what it cannot do without is gone; from any thread."""
        self._lost = error
        self._inbox.put(self._check_lost)

    def abort(self, request_id: str) -> None:
        """End all choices of a request; harmless when there are none."""
        self._inbox.put(lambda: self._abort(lambda g: g.sequence.request_id == request_id))

    def watch(self, watcher: FrameSink) -> None:
        """Send frames of the live view from now on.

        Raises:
            EngineUnavailableError: the loop has ended.
        """
        with self._gate:
            if self._error is not None:
                raise self._error
            self._inbox.put(lambda: self._live.add(watcher))

    def unwatch(self, watcher: FrameSink) -> None:
        """Send no more frames."""
        self._inbox.put(lambda: self._live.remove(watcher))

    def end_watch_when_idle(self) -> None:
        """End all watching once nothing runs any more; at once if nothing does."""
        self._inbox.put(self._live.end_when_idle)

    def stop(self) -> None:
        """Abort what still runs and end the thread. Returns once it is gone."""
        self._inbox.put(self._stop)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    # ---- the loop's own thread ----

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._drain_inbox()
                self._step()
            self._on_stopped()
            error = EngineUnavailableError("The engine is shut down.")
        except EngineUnavailableError as lost:
            logger.error("The engine loop is lost: %s", lost)
            error = lost
        except Exception:
            logger.exception("The engine loop is lost; restart the process.")
            error = EngineUnavailableError(
                "The engine stopped after an internal error; the server has to be restarted."
            )
        with self._gate:
            self._error = error
        self._fail_everything(error)

    def _drain_inbox(self) -> None:
        """Run the commands that came in; sleeps for the first one when there is no work."""
        wait = not self._generations
        if wait:
            self._live.rest()
        while wait or not self._inbox.empty():
            command = self._inbox.get()
            command()
            self._flush()
            wait = False

    def _step(self) -> None:
        self._expire()
        stopwatch = Stopwatch()
        batch = self._scheduler.schedule()
        stopwatch.lap("schedule")
        if batch:
            self._run_batch(batch, stopwatch)
            stopwatch.lap("commit")
        self._flush()
        if batch:
            stopwatch.lap("emit")
            self._observe(batch, stopwatch)

    def _run_batch(self, batch: list[ScheduledSequence], stopwatch: Stopwatch) -> None:
        try:
            sampled = self._executor.execute(batch, stopwatch)
            self._check_lost()
        except EngineUnavailableError:  # nothing can run any more
            raise
        except Exception as error:
            logger.exception("A step failed; its %d requests fail with it.", len(batch))
            failure = GenerationError(f"The model failed on this request: {error}")
            for item in batch:
                self._fail(self._generations[item.sequence.task_id], failure)
            return
        new_tokens = iter(sampled)
        num_tokens = 0
        for item in batch:
            num_tokens += self._advance(item, next(new_tokens) if item.samples else [])
        self.counters.note_step(num_tokens)

    def _observe(self, batch: list[ScheduledSequence], stopwatch: Stopwatch) -> None:
        """Let the chunk budget, the trace and the live view learn from a step."""
        scheduler = self._scheduler
        num_decoding = sum(item.is_decode for item in batch)
        num_prompt_tokens = sum(item.num_tokens for item in batch) - num_decoding
        num_drafted = sum(len(item.draft) for item in batch)
        if scheduler.chunk_budget is not None and not num_drafted:
            scheduler.chunk_budget.observe(num_decoding, num_prompt_tokens, stopwatch.seconds)
        if self.trace is not None:
            self.trace.add(
                StepRecord(
                    started_at=stopwatch.started_at,
                    phases=stopwatch.laps,
                    num_decoding=num_decoding,
                    num_prompt_tokens=num_prompt_tokens,
                    num_drafted=num_drafted,
                    num_running=len(scheduler.running),
                    num_waiting=len(scheduler.waiting),
                    num_free_pages=scheduler.cache.num_free_pages,
                    num_cached_pages=scheduler.cache.num_cached_pages,
                )
            )
        if self._live.is_watched:
            self._live.note_step(batch, stopwatch.seconds)

    def _advance(self, item: ScheduledSequence, tokens: list[SampledToken]) -> int:
        """Give a sequence what came of a step; gives the number of tokens it grew by."""
        generation = self._generations[item.sequence.task_id]
        scores = generation.take_prompt_logprobs()
        if scores is not None:
            self._outbox.add(generation.sink, scores)
        num_known = item.sequence.num_generated
        outcome = generation.extend(tokens)
        num_new = item.sequence.num_generated - num_known
        if num_new and not num_known:
            self.counters.note_first_token(item.sequence)
        delta = generation.take_delta()
        if delta is not None:
            self._outbox.add(generation.sink, delta)
        if isinstance(outcome, GenerationError):
            self._fail(generation, outcome)
            return num_new
        num_right = num_new - 1 if item.draft else 0
        if item.draft:
            self.counters.note_draft(len(item.draft), num_right)
        self._scheduler.commit(item, num_right)
        if outcome is not None:
            self._finish(generation, outcome)
        return num_new

    def _add(self, generations: list[Generation]) -> None:
        for generation in generations:
            self.counters.requests += 1
            self._generations[generation.sequence.task_id] = generation
            sequence = generation.sequence
            if sequence.max_tokens == 0 and not sequence.scores_prompt:
                self._finish(generation, Ending(FinishReason.LENGTH))
            else:
                self._scheduler.add(sequence)

    def _abort(self, chosen: Callable[[Generation], bool]) -> None:
        for generation in [g for g in self._generations.values() if chosen(g)]:
            self._finish(generation, Ending(FinishReason.ABORTED))

    def _expire(self) -> None:
        now = monotonic()
        for generation in list(self._generations.values()):
            sequence, request = generation.sequence, generation.sequence.request
            if request.deadline is not None and now >= request.deadline:
                self._fail(generation, DeadlineExceededError("The request's time limit passed."))
            elif (
                request.queue_timeout is not None
                and not sequence.is_admitted
                and now >= sequence.submitted_at + request.queue_timeout
            ):
                error = f"The request waited for {request.queue_timeout} seconds without starting."
                self._fail(generation, DeadlineExceededError(error))

    def _check_lost(self) -> None:
        if self._lost is not None and self._error is None:
            raise self._lost

    def _stop(self) -> None:
        self._stopping = True
        self._abort(lambda _: True)

    def _finish(self, generation: Generation, ending: Ending) -> None:
        event = Finished(
            ending.reason,
            generation.usage,
            generation.sequence.index,
            ending.stop,
            generation.take_end_logprobs(),
            generation.timing,
        )
        self._close(generation, ending.reason, event)

    def _fail(self, generation: Generation, error: AstraiError) -> None:
        event = Failed(error, generation.sequence.index, generation.timing)
        self._close(generation, FinishReason.ERROR, event)

    def _close(
        self, generation: Generation, reason: FinishReason, event: Finished | Failed
    ) -> None:
        self._scheduler.remove(generation.sequence)
        if self._live.is_watched:
            self._live.note_end(generation.sequence, reason)
        del self._generations[generation.sequence.task_id]
        seconds = monotonic() - generation.sequence.submitted_at
        self.counters.note_finished(reason, generation.sequence, seconds)
        self._outbox.add(generation.sink, event)
        self._on_closed(generation)

    def _flush(self) -> None:
        """Send the step's events; a request that nobody can read any more is aborted."""
        while unreachable := self._outbox.flush():
            self._abort_for(unreachable)

    def _abort_for(self, sinks: list[EventSink]) -> None:
        self._abort(lambda generation: generation.sink in sinks)

    def _fail_everything(self, error: AstraiError) -> None:
        """The loop has ended: answer whoever waits, without trusting scheduler and cache."""
        while not self._inbox.empty():
            self._inbox.get()()
        for generation in self._generations.values():
            event = Failed(error, generation.sequence.index, generation.timing)
            self._outbox.add(generation.sink, event)
            self._on_closed(generation)
        self._generations.clear()
        self._outbox.flush()
        self._live.close()
