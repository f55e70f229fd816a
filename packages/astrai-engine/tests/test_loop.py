"""The life of requests, with a script in place of the model."""

import asyncio
import queue
import threading
import time

import pytest

from astrai_engine.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    GenerationError,
)
from astrai_engine.events import Failed, Finished, FinishReason, TokenDelta
from astrai_engine.generation import Generation
from astrai_engine.handle import AsyncRequestHandle, SyncRequestHandle
from astrai_engine.loop import InferenceScheduler
from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import SampledToken
from astrai_engine.scheduler import Scheduler
from astrai_engine.sequence import Sequence
from astrai_engine.speculation import FREE, Speculation
from astrai_engine.testing import CountingCache, PieceTokenizer, ScriptedExecutor
from astrai_engine.trace import StepTrace

EOS = 0
PIECES = [b"", *[f"<{i}>".encode() for i in range(1, 100)]]


def count_up(sequence):
    """The model of these tests: it counts its own tokens from 1."""
    return sequence.num_generated + 1


class Harness:
    """A loop on a scripted model, with handles to submit to it."""

    def __init__(
        self, script=count_up, *, num_pages=50, max_batch_size=4, pieces=PIECES, speculates=False
    ):
        self.cache = CountingCache(num_pages, page_size=4)
        self.executor = ScriptedExecutor(script)
        self.closed = []
        self.tokenizer = PieceTokenizer(pieces)
        self.loop = InferenceScheduler(
            Scheduler(
                self.cache,
                max_batch_size=max_batch_size,
                max_step_tokens=16,
                speculation=Speculation(FREE) if speculates else None,
            ),
            self.executor,
            on_closed=self.closed.append,
        )
        self._arrival = 0

    def __enter__(self):
        self.loop.start()
        return self

    def __exit__(self, *exc):
        self.loop.stop()

    def submit(
        self, name, *, tokens=4, fill=1, handle_type=SyncRequestHandle, max_tokens=5, **parameters
    ):
        prompt_ids = [fill] * tokens
        request = GenerationRequest(
            prompt_token_ids=prompt_ids, max_tokens=max_tokens, **parameters
        )
        handle = handle_type(
            name, num_prompt_tokens=tokens, num_choices=request.n, abort=self.loop.abort
        )
        self._arrival += 1
        self.loop.submit(
            Generation(
                Sequence(
                    task_id=f"{name}.{index}",
                    request_id=name,
                    request=request,
                    index=index,
                    token_ids=list(prompt_ids),
                    num_prompt_tokens=tokens,
                    max_tokens=max_tokens,
                    arrival=self._arrival,
                    seed=0,
                    submitted_at=time.monotonic(),
                ),
                handle,
                tokenizer=self.tokenizer,
                eos_token_ids=frozenset({EOS}),
            )
            for index in range(request.n)
        )
        return handle


def text_of(events, index=0):
    return "".join(e.text for e in events if isinstance(e, TokenDelta) and e.index == index)


def test_a_request_streams_its_text_and_ends_at_its_length():
    """B079: the reason is true and the counts add up."""
    with Harness() as harness:
        events = list(harness.submit("a", max_tokens=3))
    assert text_of(events) == "<1><2><3>"
    assert [type(e) for e in events] == [TokenDelta] * 3 + [Finished]
    assert events[-1].reason is FinishReason.LENGTH
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == (4, 3)
    assert harness.cache.lengths == {}
    assert len(harness.closed) == 1


def test_the_end_token_stops_and_is_not_text():
    """B082."""
    with Harness(lambda s: 7 if s.num_generated < 2 else EOS) as harness:
        events = list(harness.submit("a"))
    assert text_of(events) == "<7><7>"
    assert events[-1].reason is FinishReason.STOP
    assert events[-1].usage.completion_tokens == 3


def test_ignore_eos_goes_on():
    """B178."""
    with Harness(lambda s: EOS) as harness:
        events = list(harness.submit("a", ignore_eos=True, max_tokens=4))
    assert events[-1].reason is FinishReason.LENGTH
    assert events[-1].usage.completion_tokens == 4


def test_stop_tokens_end_without_their_text():
    with Harness() as harness:
        events = list(harness.submit("a", stop_token_ids=[3]))
    assert text_of(events) == "<1><2>"
    assert events[-1] == Finished(FinishReason.STOP, events[-1].usage)


def test_a_stop_string_is_reported():
    with Harness() as harness:
        events = list(harness.submit("a", stop=["3>"]))
    assert text_of(events) == "<1><2><"
    assert (events[-1].reason, events[-1].stop) == (FinishReason.STOP, "3>")


def test_no_tokens_asked_for():
    with Harness() as harness:
        events = list(harness.submit("a", max_tokens=0))
    assert [type(e) for e in events] == [Finished]
    assert events[0].reason is FinishReason.LENGTH


def test_choices_are_told_apart():
    """B054."""
    with Harness(lambda s: 10 * (s.index + 1)) as harness:
        events = list(harness.submit("a", n=2, max_tokens=2))
    assert (text_of(events, 0), text_of(events, 1)) == ("<10><10>", "<20><20>")
    assert sorted(e.index for e in events if isinstance(e, Finished)) == [0, 1]


def test_requests_run_side_by_side():
    """B057."""
    with Harness() as harness:
        handles = [harness.submit(str(i), tokens=i + 1) for i in range(10)]
        texts = [text_of(list(handle)) for handle in handles]
    assert texts == ["<1><2><3><4><5>"] * 10


def test_a_pool_that_is_too_small_for_all_changes_no_text():
    """B015: constant preemption."""
    with Harness(num_pages=6) as harness:
        handles = [harness.submit(str(i), max_tokens=14) for i in range(5)]
        texts = {text_of(list(handle)) for handle in handles}
    assert harness.loop.num_preemptions > 0
    assert texts == {"".join(f"<{i}>" for i in range(1, 15))}
    assert harness.cache.lengths == {}


class Gate:
    """A script that waits in its first step until it is told to go on."""

    def __init__(self, script=count_up):
        self.entered, self.open = threading.Event(), threading.Event()
        self._script = script

    def __call__(self, sequence):
        self.entered.set()
        assert self.open.wait(20)
        return self._script(sequence)


def test_abort_ends_a_running_request_within_a_step():
    gate = Gate()
    with Harness(gate) as harness:
        handle = harness.submit("a", max_tokens=90)
        assert gate.entered.wait(20)
        handle.abort()
        gate.open.set()
        events = list(handle)
        assert events[-1].reason is FinishReason.ABORTED
        assert len(harness.executor.steps) <= 2
        assert list(harness.submit("b"))[-1].reason is FinishReason.LENGTH
    assert harness.cache.lengths == {}
    assert harness.loop.counters.finished[FinishReason.ABORTED] == 1  # B209


def test_abort_of_a_waiting_request():
    gate = Gate()
    with Harness(gate, max_batch_size=1) as harness:
        running = harness.submit("a", max_tokens=2)
        assert gate.entered.wait(20)
        waiting = harness.submit("b")
        waiting.abort()
        gate.open.set()
        assert [type(e) for e in waiting] == [Finished]
        assert text_of(list(running)) == "<1><2>"


def test_abort_of_nothing_is_harmless():
    with Harness() as harness:
        harness.loop.abort("never")
        handle = harness.submit("a")
        list(handle)
        handle.abort()
        assert list(harness.submit("b"))


def test_many_aborts_leave_nothing_behind():
    """B041."""
    with Harness(num_pages=20) as harness:
        handles = [harness.submit(str(i), n=2) for i in range(300)]
        for handle in handles:
            handle.abort()
        for handle in handles:
            list(handle)
        assert (harness.loop.num_running, harness.loop.num_waiting) == (0, 0)
    assert harness.cache.lengths == {}
    assert len(harness.closed) == 600


def test_a_failing_step_fails_only_its_own_requests():
    def script(sequence):
        if sequence.request_id == "bad":
            raise RuntimeError("the model broke")
        return count_up(sequence)

    with Harness(script) as harness:
        (failed,) = list(harness.submit("bad"))
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, GenerationError)
        assert text_of(list(harness.submit("good"))) == "<1><2><3><4><5>"
        assert harness.loop.is_alive
    assert harness.cache.lengths == {}


def test_a_sampling_error_fails_one_row_of_a_batch():
    """B108: its neighbours go on, and none of its pages are offered to the cache."""
    gate = Gate()

    def script(sequence):
        token = gate(sequence)
        return SampledToken(-1, error="NaN") if sequence.request_id == "b" else token

    with Harness(script) as harness:
        first = harness.submit("a", tokens=2)
        assert gate.entered.wait(20)
        bad, good = harness.submit("b", tokens=9, fill=50), harness.submit("c", tokens=3)
        gate.open.set()
        assert isinstance(list(bad)[-1], Failed)
        assert text_of(list(good)) == text_of(list(first)) == "<1><2><3><4><5>"
        again = list(harness.submit("d", tokens=9, fill=50))
    assert again[-1].usage.cached_tokens == 0


def test_a_deadline_fails_a_request_before_and_while_it_runs():
    with Harness(lambda s: time.sleep(0.01) or 1) as harness:
        (event,) = list(harness.submit("late", deadline=time.monotonic() - 1))
        assert isinstance(event.error, DeadlineExceededError)
        handle = harness.submit("slow", max_tokens=150, deadline=time.monotonic() + 0.05)
        assert isinstance(list(handle)[-1].error, DeadlineExceededError)
    assert harness.cache.lengths == {}


def test_a_request_that_waits_too_long_fails_and_the_running_one_goes_on():
    gate = Gate()
    with Harness(gate, max_batch_size=1) as harness:
        running = harness.submit("a", queue_timeout=60.0, max_tokens=2)
        assert gate.entered.wait(20)
        waiting = harness.submit("b", queue_timeout=0.0)
        gate.open.set()
        (event,) = list(waiting)
        assert isinstance(event.error, DeadlineExceededError)
        assert text_of(list(running)) == "<1><2>"


def test_a_lost_loop_answers_everybody_and_refuses_newcomers():
    """B058, B205."""
    gate = Gate()
    with Harness(gate, max_batch_size=1) as harness:
        running, waiting = harness.submit("a"), harness.submit("b")
        assert gate.entered.wait(20)
        harness.cache.task_free = None  # the cache is broken from now on
        gate.open.set()
        for handle in (running, waiting):
            assert isinstance(list(handle)[-1].error, EngineUnavailableError)
        harness.loop._thread.join(20)
        assert not harness.loop.is_alive
        with pytest.raises(EngineUnavailableError):
            harness.submit("c")
    assert len(harness.closed) == 2


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_loop_that_loses_what_it_needs_says_so(is_idle):
    """At rest, and in the middle of a step, whose result then counts for nothing."""
    gate, error = Gate(), EngineUnavailableError("Gone.")
    with Harness(gate) as harness:
        handles = [] if is_idle else [harness.submit("a"), harness.submit("b")]
        if not is_idle:
            assert gate.entered.wait(20)
        harness.loop.lose(error)
        gate.open.set()
        for handle in handles:
            (event,) = list(handle)
            assert event.error is error
        harness.loop._thread.join(20)
        assert not harness.loop.is_alive
        with pytest.raises(EngineUnavailableError, match="Gone"):
            harness.submit("c")
        harness.loop.lose(error)
    assert len(harness.closed) == len(handles)


def test_a_step_that_finds_the_engine_lost_ends_the_loop():
    error = EngineUnavailableError("Gone.")

    def script(sequence):
        raise error

    with Harness(script) as harness:
        (event,) = list(harness.submit("a"))
        assert event.error is error
        harness.loop._thread.join(20)
        assert not harness.loop.is_alive


def test_stop_ends_what_runs_and_the_thread():
    gate = Gate()
    harness = Harness(gate)
    harness.loop.start()
    handle = harness.submit("a", max_tokens=90)
    assert gate.entered.wait(20)
    stopper = threading.Thread(target=harness.loop.stop)
    stopper.start()
    gate.open.set()
    assert list(handle)[-1].reason is FinishReason.ABORTED
    stopper.join(20)
    assert not stopper.is_alive()
    assert not harness.loop.is_alive
    with pytest.raises(EngineUnavailableError):
        harness.submit("b")
    harness.loop.stop()


def test_a_lost_loop_sends_its_watchers_away():
    class Watcher:
        frames = queue.SimpleQueue()

        def deliver(self, frame):
            self.frames.put(frame)
            return True

    with Harness() as harness:
        harness.loop.watch(Watcher())
        assert Watcher.frames.get(timeout=20).requests == ()
        harness.cache.task_free = None
        assert isinstance(list(harness.submit("a"))[-1].error, EngineUnavailableError)
        while Watcher.frames.get(timeout=20) is not None:
            pass
        with pytest.raises(EngineUnavailableError):
            harness.loop.watch(Watcher())


def test_idle_means_asleep():
    """B058: nothing polls."""
    with Harness() as harness:
        list(harness.submit("a"))
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1


async def test_asyncio_handles():
    with Harness() as harness:
        handles = [
            harness.submit(str(i), handle_type=AsyncRequestHandle, max_tokens=i + 1)
            for i in range(8)
        ]

        async def read(handle):
            return [event async for event in handle]

        results = await asyncio.gather(*[read(handle) for handle in handles])
    assert [text_of(events) for events in results] == [
        "".join(f"<{n}>" for n in range(1, i + 2)) for i in range(8)
    ]


async def test_one_wake_up_a_step_for_all_streams(monkeypatch):
    loop = asyncio.get_running_loop()
    wake_ups = []
    original = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop,
        "call_soon_threadsafe",
        lambda callback, *args, **kw: (wake_ups.append(args), original(callback, *args, **kw))[1],
    )
    gate = Gate()
    with Harness(gate) as harness:
        handles = [harness.submit(str(i), handle_type=AsyncRequestHandle) for i in range(4)]
        gate.open.set()
        for handle in handles:
            async for _ in handle:
                pass
        steps = len(harness.executor.steps)
    assert len(wake_ups) <= steps


def test_a_closed_asyncio_loop_aborts_its_requests():
    gate = Gate()
    with Harness(gate) as harness:

        async def submit():
            return harness.submit("a", handle_type=AsyncRequestHandle, max_tokens=90)

        asyncio.run(submit())
        gate.open.set()
        assert text_of(list(harness.submit("b"))) == "<1><2><3><4><5>"
    assert harness.loop.counters.finished[FinishReason.ABORTED] == 1


def test_prefix_hits_are_reported():
    with Harness() as harness:
        list(harness.submit("a", tokens=10))
        events = list(harness.submit("b", tokens=10))
    assert events[-1].usage.cached_tokens == 8
    assert harness.loop.counters.cached_tokens == 8


def cycle_at(place):
    return 9 if place % 13 == 12 else place % 5 + 1


def cycle(sequence):
    """A text that repeats itself every five tokens, with an exception now and then."""
    return cycle_at(sequence.num_generated)


def outcome(events):
    """What came of a request, however its text was cut into events."""
    entries = [entry for e in events if isinstance(e, TokenDelta) for entry in e.logprobs]
    return text_of(events), entries, events[-1]


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_tokens": 1},
        {"max_tokens": 2},
        {"max_tokens": 40},
        {"max_tokens": 40, "stop": ["3><4><5><1><9>"]},
        {"max_tokens": 40, "stop": ["5>"], "min_tokens": 20},
        {"max_tokens": 40, "stop_token_ids": [9]},
        {"max_tokens": 40, "stop_token_ids": [2], "min_tokens": 25},
    ],
)
def test_guesses_change_nothing_but_the_number_of_steps(parameters):
    outcomes, steps = [], []
    for speculates in (False, True):
        with Harness(cycle, speculates=speculates) as harness:
            outcomes.append(outcome(list(harness.submit("a", **parameters))))
            steps.append(len(harness.executor.steps))
            counters = harness.loop.counters
        assert harness.cache.lengths == {}
        assert counters.generated_tokens == outcomes[-1][2].usage.completion_tokens
        assert counters.accepted_tokens == steps[0] - steps[-1]
    assert outcomes[0] == outcomes[1]
    if parameters["max_tokens"] > 2:
        assert steps[1] < steps[0]


def test_the_tokens_of_a_step_come_in_one_event():
    with Harness(lambda s: s.num_generated % 2 + 1, speculates=True) as harness:
        events = list(harness.submit("a", max_tokens=20))
    assert max(len(e.token_ids) for e in events if isinstance(e, TokenDelta)) > 5
    assert len({e.usage.completion_tokens for e in events}) == len(events) - 1


def test_an_end_token_among_right_guesses_drops_what_comes_after_it():
    with Harness(lambda s: s.num_generated % 3, speculates=True) as harness:
        ignored = list(harness.submit("a", max_tokens=20, ignore_eos=True))
        stopped = list(harness.submit("b", max_tokens=20, min_tokens=14))
    assert ignored[-1].reason is FinishReason.LENGTH
    assert (stopped[-1].reason, stopped[-1].usage.completion_tokens) == (FinishReason.STOP, 16)


def test_an_error_behind_right_guesses_leaves_the_tokens_before_it():
    def script(sequence):
        if sequence.num_generated == 15:
            return SampledToken(-1, error="NaN")
        return sequence.num_generated % 2 + 1

    with Harness(script, speculates=True) as harness:
        events = list(harness.submit("a", max_tokens=20))
        again = list(harness.submit("b", max_tokens=3))
    assert text_of(events) == "".join(f"<{n % 2 + 1}>" for n in range(15))
    assert isinstance(events[-1], Failed)
    assert text_of(again) == "<1><2><1>"
    assert harness.cache.lengths == {}


def test_guesses_under_constant_preemption_change_no_text():
    with Harness(cycle, num_pages=9, speculates=True) as harness:
        handles = [harness.submit(str(i), max_tokens=20) for i in range(5)]
        texts = {text_of(list(handle)) for handle in handles}
        assert harness.loop.num_preemptions > 0
        assert harness.loop.counters.accepted_tokens > 0
    with Harness(cycle) as harness:
        assert texts == {text_of(list(harness.submit("a", max_tokens=20)))}


def test_the_prefix_cache_holds_no_wrong_guess():
    """A prompt that goes on as the guess did, where the text did not."""
    with Harness(cycle, speculates=True) as harness:
        list(harness.submit("a", max_tokens=16))
        text = [1] * 4 + [cycle_at(n) for n in range(16)]
        right = harness.cache.prefix_len([*text, 0, 0, 0, 0])
        wrong = harness.cache.prefix_len([*text[:16], 3, *text[17:], 0, 0, 0, 0])
    assert (right, wrong) == (16, 16)


def test_steps_with_guesses_are_traced():
    with Harness(cycle, speculates=True) as harness:
        harness.loop.trace = trace = StepTrace()
        list(harness.submit("a", max_tokens=20))
    assert sum(r.num_drafted for r in trace.records) == harness.loop.counters.drafted_tokens > 0
    assert all(r.num_prompt_tokens in (0, 4) for r in trace.records)
