import json

import pytest

from astrai_engine.stopwatch import Stopwatch
from astrai_engine.trace import StepRecord, StepTrace


def record(started_at=1.0):
    return StepRecord(
        started_at=started_at,
        phases={"schedule": 0.001, "forward": 0.01},
        num_decoding=3,
        num_prompt_tokens=17,
        num_drafted=2,
        num_running=4,
        num_waiting=2,
        num_free_pages=5,
        num_cached_pages=6,
    )


def test_only_the_last_steps_are_kept():
    trace = StepTrace(max_steps=2)
    for at in (1.0, 2.0, 3.0):
        trace.add(record(at))
    assert [r.started_at for r in trace.records] == [2.0, 3.0]


def test_the_chrome_form_nests_phases_in_their_step(tmp_path):
    trace = StepTrace()
    trace.add(record())
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    step, schedule, forward, requests, pages = events
    assert (step["ph"], step["ts"]) == ("X", 1e6)
    assert step["dur"] == pytest.approx(11_000)
    assert step["args"] == {"decoding": 3, "prompt_tokens": 17, "drafted": 2}
    assert (schedule["name"], schedule["ts"]) == ("schedule", 1e6)
    assert forward["ts"] == pytest.approx(1e6 + 1000)
    assert requests["args"] == {"running": 4, "waiting": 2}
    assert pages["args"] == {"free": 5, "cached": 6}


def test_laps_of_one_name_add_up():
    stopwatch = Stopwatch()
    for name in ("a", "b", "a"):
        stopwatch.lap(name)
    assert list(stopwatch.laps) == ["a", "b"]
    assert sum(stopwatch.laps.values()) == pytest.approx(stopwatch.seconds)
