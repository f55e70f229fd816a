import pytest
import torch

from astrai_engine.sampling import SampledToken
from astrai_engine.testing import ScriptedExecutor
from astrai_engine.warmup import measure_step_cost, warm_up
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


@pytest.mark.parametrize(("fixed", "per_token"), [(0.005, 0.001), (2.0, 0.5), (0.003, 0.0)])
def test_the_cost_of_a_step_is_measured(monkeypatch, fixed, per_token):
    clock = Clock()
    for module in ("warmup", "stopwatch"):
        monkeypatch.setattr(f"astrai_engine.{module}.perf_counter", clock)
    pool = make_pool()
    cost = measure_step_cost(TimedExecutor(lambda n: fixed + per_token * n, clock), pool)
    assert (cost.fixed, cost.per_token) == (pytest.approx(fixed), pytest.approx(per_token))
    assert pool.num_free_pages == pool.num_pages
    assert clock.now <= max(0.3, 2 * fixed + 10 * per_token) * 1.2  # starting does not take longer


@pytest.mark.parametrize("max_seq_len", [1, 2])
def test_a_context_without_room_for_guesses_can_be_measured(max_seq_len):
    pool = make_pool(max_seq_len)
    measure_step_cost(ScriptedExecutor(lambda sequence: 0), pool)
    assert pool.num_free_pages == pool.num_pages
