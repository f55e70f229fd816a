"""A gate that tests hold a scripted engine at: delays without clocks."""

import asyncio
from concurrent.futures import Future


class Gate:
    """Closed until opened, once, from any thread or event loop."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def open(self) -> None:
        """Let everything waiting through."""
        if not self._future.done():
            self._future.set_result(None)

    @property
    def is_open(self) -> bool:
        """Whether it has been opened."""
        return self._future.done()

    async def wait(self) -> None:
        """Return once the gate is open."""
        await asyncio.shield(asyncio.wrap_future(self._future))


async def first_open(*gates: Gate) -> None:
    """Return once any of the gates is open."""
    waits = [asyncio.ensure_future(gate.wait()) for gate in gates]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
