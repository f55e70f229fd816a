import asyncio

from astrai_engine.delivery import Outbox
from astrai_engine.events import Finished, FinishReason, Usage
from astrai_engine.testing import RecordingSink


def event(index=0):
    return Finished(FinishReason.STOP, Usage(1, 0, 1), index)


def test_events_arrive_in_order_and_once():
    outbox, first, second = Outbox(), RecordingSink(), RecordingSink()
    outbox.add(first, event(0))
    outbox.add(second, event(1))
    outbox.add(first, event(2))
    assert first.events == []
    assert outbox.flush() == []
    assert [e.index for e in first.events] == [0, 2]
    assert [e.index for e in second.events] == [1]
    outbox.flush()
    assert len(first.events) == 2


def test_a_sink_that_raises_is_reported_and_the_others_are_served():
    class Broken(RecordingSink):
        def deliver(self, events):
            raise ValueError

    outbox, broken, fine = Outbox(), Broken(), RecordingSink()
    outbox.add(broken, event())
    outbox.add(fine, event())
    assert outbox.flush() == [broken]
    assert len(fine.events) == 1


async def test_sinks_of_a_loop_are_served_on_it():
    class OnLoop(RecordingSink):
        loop = asyncio.get_running_loop()

    outbox, sinks = Outbox(), [OnLoop(), OnLoop()]
    for sink in sinks:
        outbox.add(sink, event())
    assert await asyncio.to_thread(outbox.flush) == []
    await asyncio.sleep(0)
    assert [len(sink.events) for sink in sinks] == [1, 1]


def test_a_closed_loop_is_reported():
    loop = asyncio.new_event_loop()
    loop.close()
    sink = RecordingSink()
    sink.loop = loop
    outbox = Outbox()
    outbox.add(sink, event())
    assert outbox.flush() == [sink]
    assert outbox.flush() == []
