"""How many replicas a load asks for; tests/scale has the policy at work."""

from types import SimpleNamespace

import pytest

from astrai_api.replicas.autoscaling import by_queue_length, load_of
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.request import GenerationRequest


@pytest.mark.parametrize(
    ("loads", "waiting", "wanted"),
    [({}, 0, 0), ({"a": 8.0}, 0, 1), ({"a": 9.0, "b": 3.0}, 0, 1.5), ({"a": 8.0}, 20, 3.5)],
)
def test_queues_are_shared_out_by_the_target(loads, waiting, wanted):
    context = SimpleNamespace(
        aggregated_metrics={"choices": loads},
        total_queued_requests=waiting,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8),
    )
    assert by_queue_length(context) == (wanted, {})


def test_nothing_is_wanted_where_nothing_is_known():
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 8)
    context = SimpleNamespace(aggregated_metrics=None, total_queued_requests=None, config=config)
    assert by_queue_length(context) == (0, {})


async def test_every_choice_that_runs_or_waits_counts():
    engine = FakeEngine.scripted(Reply("x", Gate()))
    assert load_of(engine.get_stats()) == {"choices": 0}
    handle = await engine.submit_async(GenerationRequest(prompt="a b", n=3))
    assert load_of(engine.get_stats()) == {"choices": 3}
    assert load_of({"active_tasks": 2, "waiting_queue": 5}) == {"choices": 7}
    handle.abort()
