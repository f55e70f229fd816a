import threading

import pytest

from astrai_engine.admission import Admission
from astrai_engine.errors import EngineUnavailableError, QueueFullError


def test_as_many_as_run_and_wait_are_let_in():
    admission = Admission(max_batch_size=2, max_queue=3)
    for _ in range(5):
        admission.enter(1, 1.0)
    with pytest.raises(QueueFullError, match="5 is the limit"):
        admission.enter(1, 1.0)
    admission.leave()
    admission.enter(1, 1.0)


def test_a_request_with_several_choices_comes_in_whole_or_not_at_all():
    admission = Admission(max_batch_size=2, max_queue=2)
    admission.enter(3, 1.0)
    with pytest.raises(QueueFullError):
        admission.enter(2, 1.0)
    admission.enter(1, 1.0)


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 1.0), (4.0, 8.0), (1e6, 60.0)])
def test_the_retry_estimate_follows_the_load_within_bounds(seconds, expected):
    admission = Admission(max_batch_size=1, max_queue=1)
    admission.enter(2, seconds)
    with pytest.raises(QueueFullError) as refused:
        admission.enter(1, seconds)
    assert refused.value.retry_after == expected


def test_a_closed_gate_lets_nobody_in():
    admission = Admission(max_batch_size=1, max_queue=1)
    admission.close()
    for attempt in (lambda: admission.check(1), lambda: admission.enter(1, 1.0)):
        with pytest.raises(EngineUnavailableError):
            attempt()


def test_waiting_for_the_last_one_to_leave():
    admission = Admission(max_batch_size=1, max_queue=1)
    assert admission.wait_empty(0.0)
    admission.enter(2, 1.0)
    assert not admission.wait_empty(0.0)
    admission.leave()
    leaving = threading.Thread(target=admission.leave)
    leaving.start()
    assert admission.wait_empty(20)
    leaving.join()


def test_waiting_for_room():
    admission = Admission(max_batch_size=1, max_queue=0)
    admission.enter(1, 1.0)
    entered = threading.Event()

    def enter():
        admission.enter(1, 1.0, wait=True)
        entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.wait(0.05)
    admission.leave()
    assert entered.wait(20)
    waiting.join()


def test_nobody_waits_for_room_that_never_comes():
    admission = Admission(max_batch_size=1, max_queue=1)
    with pytest.raises(QueueFullError):
        admission.enter(3, 1.0, wait=True)
    admission.close()
    with pytest.raises(EngineUnavailableError):
        admission.enter(1, 1.0, wait=True)
