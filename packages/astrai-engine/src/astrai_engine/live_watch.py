"""Frames of the live view on the asyncio side: an endless iteration that nobody has to empty."""

import asyncio
from collections.abc import AsyncIterator

from astrai_engine.live_frame import LiveFrame

_MAX_BEHIND = 8


class Watch:
    """One watcher on the running asyncio loop.

    A watcher that is more than eight frames behind misses frames, so a slow one costs no memory.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[LiveFrame | None] = asyncio.Queue()

    def deliver(self, frame: LiveFrame | None) -> bool:
        """Take a frame or the end from the engine's thread; False when the loop has closed."""
        try:
            self._loop.call_soon_threadsafe(self._put, frame)
        except RuntimeError:
            return False
        return True

    def _put(self, frame: LiveFrame | None) -> None:
        if frame is None or self._frames.qsize() < _MAX_BEHIND:
            self._frames.put_nowait(frame)

    async def __aiter__(self) -> AsyncIterator[LiveFrame]:
        while (frame := await self._frames.get()) is not None:
            yield frame
