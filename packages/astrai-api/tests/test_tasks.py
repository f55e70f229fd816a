"""No task outlives the block that started it."""

import asyncio

import pytest

from astrai_api.tasks import run_until_disconnect, running


class Work:
    """Waits until told to go on; remembers how it ended."""

    def __init__(self):
        self.proceed = asyncio.Event()
        self.end = None

    async def run(self):
        try:
            await self.proceed.wait()
            self.end = "done"
        except asyncio.CancelledError:
            self.end = "cancelled"
            raise


class Channel:
    """The receiving side of a client."""

    def __init__(self):
        self.messages = asyncio.Queue()

    async def receive(self):
        return {"type": await self.messages.get()}


async def test_work_that_ends_wins():
    work, channel = Work(), Channel()
    work.proceed.set()
    await run_until_disconnect(work.run(), channel.receive)
    assert work.end == "done"


async def test_disconnect_cancels():
    work, channel = Work(), Channel()
    channel.messages.put_nowait("http.request")
    channel.messages.put_nowait("http.disconnect")
    await run_until_disconnect(work.run(), channel.receive)
    assert work.end in (None, "cancelled")


async def test_failure_of_the_work_is_raised():
    async def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_disconnect(fail(), Channel().receive)


async def test_cancelling_the_caller_cancels_the_work():
    work = Work()
    caller = asyncio.ensure_future(run_until_disconnect(work.run(), Channel().receive))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.end == "cancelled"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_running_ends_with_the_block():
    work = Work()
    async with running(work.run()) as task:
        await asyncio.sleep(0)
        assert not task.done()
    assert task.cancelled()
    assert work.end == "cancelled"
