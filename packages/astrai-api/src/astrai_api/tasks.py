"""Structured concurrency for responses: no task outlives the block that started it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run ``work`` beside the block; on leaving it, cancel what is left and wait for its end."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_until_disconnect(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run ``work``, and cancel it as soon as the client goes away.

    Args:
        work: what produces the response; it cleans up when it is cancelled.
        receive: the ASGI channel of a request whose body has been read.
    """
    async with running(work) as task, running(_disconnected(receive)) as gone:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
