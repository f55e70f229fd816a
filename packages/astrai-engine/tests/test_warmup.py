import pytest
import torch

from astrai_engine.sampling import SampledToken
from astrai_engine.testing import ScriptedExecutor
from astrai_engine.warmup import measure_step_cost, record_decode, warm_up
from astrai_kvcache import PagePool
from astrai_kvcache.testing import check_invariants


def make_pool(max_seq_len=64):
    return PagePool(
        1, 1, 2, 4, max_seq_len, torch.device("cpu"), torch.float32, page_size=4, n_tokens=64
    )


def test_a_prefill_and_a_decode_run_before_the_first_request_and_leave_nothing():
    """B211: the first request finds everything warm."""
    executor = ScriptedExecutor(lambda sequence: 0)
    pool = make_pool()
    warm_up(executor, pool)
    assert [[tokens for _, tokens in step] for step in executor.steps] == [[8], [1]]
    assert pool.num_free_pages == pool.num_pages
    check_invariants(pool)


def test_a_model_that_cannot_be_recorded_runs_step_by_step(caplog):
    class Executor:
        def record_decode(self, recorder):
            recorder.record(lambda: None)

    class Recorder:
        def record(self, function):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    record_decode(Executor(), Recorder())
    assert [record.message for record in caplog.records] == [
        "Decode steps are not recorded as CUDA graphs: "
        "operation not permitted when stream is capturing"
    ]


class TimedExecutor:
    """Takes as long as it is told for each number of tokens, on a clock of its own."""

    def __init__(self, seconds, clock):
        self._seconds, self._clock = seconds, clock

    def execute(self, batch, stopwatch):
        (item,) = batch
        self._clock.now += self._seconds(item.num_tokens + len(item.draft))
        stopwatch.lap("forward")
        return [[SampledToken(0)]]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("slow", [1.0, 40.0])
def test_the_cost_of_a_step_is_measured(monkeypatch, slow):
    """By its fastest runs, and on a slow machine with fewer of them."""
    clock, seen = Clock(), []
    for module in ("warmup", "stopwatch"):
        monkeypatch.setattr(f"astrai_engine.{module}.perf_counter", clock)
    monkeypatch.setattr("astrai_engine.warmup.StepCost", lambda seconds: seen.append(seconds))
    times = {1: 0.007, 4: 0.010, 8: 0.016, 16: 0.031}
    delays = iter([0.1 * slow] + [0.0] * 99)
    pool = make_pool()
    executor = TimedExecutor(lambda n: slow * times[n] + next(delays), clock)
    measure_step_cost(executor, pool)
    assert pool.num_free_pages == pool.num_pages
    expected = {n: pytest.approx(slow * seconds) for n, seconds in times.items()}
    if slow == 40.0:  # no time for a second run
        expected[1] = pytest.approx(slow * 0.107)
    assert seen == [expected]


@pytest.mark.parametrize("max_seq_len", [1, 2, 5])
def test_a_context_without_room_for_guesses_can_be_measured(max_seq_len):
    pool = make_pool(max_seq_len)
    measure_step_cost(ScriptedExecutor(lambda sequence: 0), pool)
    assert pool.num_free_pages == pool.num_pages
