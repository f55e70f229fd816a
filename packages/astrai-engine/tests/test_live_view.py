"""What watchers see, and that nobody is bothered while there are none."""

import asyncio
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.events import FinishReason
from astrai_engine.live_view import FRAME_SECONDS, MAX_REQUESTS, LiveView, page_runs, state_runs
from astrai_engine.live_watch import Watch
from astrai_engine.metrics import EngineCounters
from astrai_engine.request import GenerationRequest
from astrai_engine.scheduler import Scheduler
from astrai_engine.sequence import Sequence
from astrai_engine.testing import CountingCache


class Recorder:
    """A watcher that keeps its frames."""

    def __init__(self):
        self.frames = []
        self.is_there = True

    def deliver(self, frame):
        self.frames.append(frame)
        return self.is_there


class Stage:
    """A scheduler whose steps are played by hand, at times set by hand."""

    def __init__(self, *, num_pages=40, max_batch_size=2, max_step_tokens=8):
        self.now = 1000.0
        self.cache = CountingCache(num_pages, page_size=4)
        self.scheduler = Scheduler(
            self.cache, max_batch_size=max_batch_size, max_step_tokens=max_step_tokens
        )
        self.counters = EngineCounters()
        self.computed = 0.0
        self.view = LiveView(
            self.scheduler,
            self.counters,
            clock=lambda: self.now,
            cpu_clock=lambda: self.computed,
        )
        self.watcher = Recorder()

    @property
    def frames(self):
        return self.watcher.frames

    def submit(self, name, num_tokens, *, max_tokens=9):
        sequence = Sequence(
            task_id=f"{name}.0",
            request_id=name,
            request=GenerationRequest(prompt_token_ids=[1] * num_tokens, request_id=f"http-{name}"),
            index=0,
            token_ids=list(range(num_tokens)),
            num_prompt_tokens=num_tokens,
            max_tokens=max_tokens,
            arrival=len(self.scheduler.waiting),
            seed=0,
            submitted_at=self.now,
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self, seconds=0.125):
        """Run a step in which every sequence that samples gets a token."""
        batch = self.scheduler.schedule()
        self.now += seconds
        for item in batch:
            if item.samples:
                item.sequence.token_ids.append(7)
                self.counters.generated_tokens += 1
            self.scheduler.commit(item)
        self.counters.steps += 1
        if self.view.is_watched:
            self.view.note_step(batch, seconds)

    def end(self, sequence, reason=FinishReason.STOP):
        self.scheduler.remove(sequence)
        self.view.note_end(sequence, reason)


@pytest.fixture
def stage():
    return Stage()


def test_the_life_of_a_request(stage):
    stage.view.add(stage.watcher)
    stage.now += 1.0
    sequence = stage.submit("a", 13, max_tokens=20)
    stage.step()
    stage.step(0.25)
    stage.step()
    stage.end(sequence)
    stage.view.rest()
    begun, first_token, ended = stage.frames

    assert (begun.number, begun.at) == (1, 1.125)
    assert (begun.num_running, begun.num_waiting) == (1, 0)
    (step,) = begun.steps
    assert (step.ended_at, step.seconds, step.num_decoding, step.num_generated) == (
        1.125, 0.125, 0, 0,
    )  # fmt: skip
    assert [(c.task_id, c.num_tokens, c.is_last) for c in step.chunks] == [("a.0", 8, False)]
    (shown,) = begun.requests
    assert (shown.task_id, shown.request_id, shown.is_running) == ("a.0", "http-a", True)
    assert (shown.submitted_at, shown.num_prompt_tokens, shown.max_tokens) == (1.0, 13, 20)
    assert (shown.num_cached, shown.num_computed, shown.num_generated) == (0, 8, 0)
    assert shown.page_runs == ((0, 2),)
    assert begun.page_states == ((2, 2), (0, 38))
    assert (begun.num_pages, begun.page_stride) == (40, 1)

    (step,) = first_token.steps
    assert [(c.num_tokens, c.is_last) for c in step.chunks] == [(5, True)]
    assert (step.num_decoding, step.num_generated) == (0, 1)

    (step,) = ended.steps
    assert (step.chunks, step.num_decoding, step.num_generated) == ((), 1, 1)
    (gone,) = ended.ended
    assert (gone.task_id, gone.request_id, gone.reason) == ("a.0", "http-a", FinishReason.STOP)
    assert (gone.submitted_at, gone.ended_at) == (1.0, 1.5)
    assert (gone.num_prompt_tokens, gone.num_cached, gone.num_generated) == (13, 0, 2)
    assert ended.requests == ()
    assert (ended.totals.steps, ended.totals.generated_tokens) == (3, 2)


def test_a_prompt_with_one_token_to_compute_is_a_chunk_and_then_decodes(stage):
    stage.end(first := stage.submit("a", 5))
    stage.submit("b", 1)
    stage.view.add(stage.watcher)
    stage.step(FRAME_SECONDS)
    stage.step(FRAME_SECONDS)
    chunk, decode = (frame.steps[0] for frame in stage.frames)
    assert [(c.task_id, c.num_tokens, c.is_last) for c in chunk.chunks] == [("b.0", 1, True)]
    assert (decode.chunks, decode.num_decoding) == ((), 1)
    assert first.num_generated == 0


def test_frames_are_a_quarter_of_a_second_apart_and_miss_no_step(stage):
    stage.view.add(stage.watcher)
    stage.submit("a", 1, max_tokens=99)
    for _ in range(9):
        stage.step(FRAME_SECONDS / 4)
    assert [len(frame.steps) for frame in stage.frames] == [1, 4, 4]
    assert [frame.number for frame in stage.frames] == [1, 2, 3]


def test_a_slow_frame_is_followed_by_a_longer_pause(stage):
    states = stage.cache.page_states

    def slow_states():
        stage.computed += 0.01
        return states()

    stage.cache.page_states = slow_states
    stage.view.add(stage.watcher)
    stage.submit("a", 1, max_tokens=99)
    for _ in range(21):
        stage.step(FRAME_SECONDS)
    assert [len(frame.steps) for frame in stage.frames] == [1, 20]


def test_an_idle_engine_shows_itself_once(stage):
    stage.view.add(stage.watcher)
    stage.view.rest()
    stage.view.rest()
    assert len(stage.frames) == 1
    assert stage.frames[0].steps == ()


def test_nothing_is_kept_without_watchers(stage):
    stage.view.add(stage.watcher)
    stage.submit("a", 1)
    for _ in range(3):
        stage.step(FRAME_SECONDS / 8)
    stage.view.remove(stage.watcher)
    stage.view.remove(stage.watcher)
    assert not stage.view.is_watched
    stage.step()
    later = Recorder()
    stage.view.add(later)
    stage.step()
    assert [step.num_generated for step in later.frames[0].steps] == [1]


def test_a_watcher_that_is_gone_is_forgotten(stage):
    other = Recorder()
    stage.view.add(stage.watcher)
    stage.view.add(other)
    stage.watcher.is_there = False
    stage.submit("a", 1)
    stage.step(FRAME_SECONDS)
    stage.step(FRAME_SECONDS)
    assert (len(stage.frames), len(other.frames)) == (1, 2)


def test_the_end_is_told_once_nothing_runs(stage):
    stage.view.add(stage.watcher)
    stage.view.end_when_idle()
    stage.submit("a", 1)
    stage.step()
    assert stage.frames[-1] is not None
    stage.view.rest()
    assert stage.frames[-1] is None
    assert not stage.view.is_watched


def test_a_fault_ends_the_view_and_nothing_else(stage, caplog):
    def broken():
        raise RuntimeError("no map")

    stage.cache.page_states = broken
    stage.view.add(stage.watcher)
    stage.submit("a", 1)
    stage.step()
    assert stage.frames == [None]
    assert "no map" in caplog.text


def test_a_long_queue_is_shown_in_part():
    stage = Stage()
    stage.view.add(stage.watcher)
    for number in range(200):
        stage.submit(str(number), 4)
    stage.step()
    (frame,) = stage.frames
    assert (frame.num_running, frame.num_waiting) == (2, 198)
    assert len(frame.requests) == MAX_REQUESTS
    assert [r.is_running for r in frame.requests[:3]] == [True, True, False]
    assert frame.requests[2].page_runs == ()


def test_a_very_large_pool_is_shown_in_part():
    stage = Stage(num_pages=40_000)
    stage.view.add(stage.watcher)
    stage.view.rest()
    (frame,) = stage.frames
    assert (frame.num_pages, frame.page_stride) == (40_000, 3)
    assert frame.page_states == ((0, 13_334),)


@pytest.mark.parametrize(
    ("pages", "runs"),
    [
        ([], ()),
        ([0], ((0, 1),)),
        ([0, 1, 2], ((0, 3),)),
        ([5, 6, 2, 3, 7], ((5, 2), (2, 2), (7, 1))),
        ([3, 2, 1], ((3, 1), (2, 1), (1, 1))),
    ],
)
def test_runs(pages, runs):
    assert page_runs(pages) == runs


@given(st.binary(max_size=40))
def test_state_runs(states):
    runs = state_runs(states)
    assert b"".join(bytes([state]) * count for state, count in runs) == states
    assert all(left[0] != right[0] for left, right in pairwise(runs))


async def test_a_watcher_that_is_slow_misses_frames_and_not_the_end():
    watch = Watch()
    for number in range(20):
        assert watch.deliver(number)
    watch.deliver(None)
    await asyncio.sleep(0)
    assert [frame async for frame in watch] == list(range(8))


def test_a_closed_asyncio_loop_can_not_be_reached():
    async def make():
        return Watch()

    watch = asyncio.run(make())
    reached = []
    thread = threading.Thread(target=lambda: reached.append(watch.deliver(None)))
    thread.start()
    thread.join()
    assert reached == [False]
