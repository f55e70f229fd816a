"""Several generations of one wire request, run side by side and seen as one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from astrai_api.client import EngineClient, RequestHandle
from astrai_engine.events import Event
from astrai_engine.request import GenerationRequest

_Events: TypeAlias = asyncio.Queue[Event | Exception | None]


async def submit_all(engine: EngineClient, requests: Sequence[GenerationRequest]) -> RequestHandle:
    """Submit all requests or none; the handle's choices are those of the first, then the next.

    Raises:
        AstraiError: the engine refuses one of them.
    """
    if len(requests) == 1:
        return await engine.submit_async(requests[0])
    handles: list[RequestHandle] = []
    try:
        for request in requests:
            handles.append(await engine.submit_async(request))  # noqa: PERF401 (kept on failure)
    except BaseException:
        for handle in handles:
            handle.abort()
        raise
    return MergedHandle(handles, requests[0].n)


class MergedHandle:
    """The handles of several requests as one.

    Args:
        handles: of the requests, in the order of their choices.
        n: choices of each.
    """

    def __init__(self, handles: Sequence[RequestHandle], n: int) -> None:
        self._handles = handles
        self._n = n
        self._forwarding: list[asyncio.Future[None]] = []

    @property
    def request_id(self) -> str:
        """The id of the first request."""
        return self._handles[0].request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens in all prompts."""
        return sum(handle.num_prompt_tokens for handle in self._handles)

    @property
    def prompt_end(self) -> str:
        """How the prompt of the first request ends."""
        return self._handles[0].prompt_end

    def abort(self) -> None:
        """Stop all of them, and stop listening to them."""
        for handle in self._handles:
            handle.abort()
        for task in self._forwarding:
            task.cancel()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events of all requests as they come."""
        events: _Events = asyncio.Queue()
        self._forwarding = [
            asyncio.ensure_future(_forward(handle, number * self._n, events))
            for number, handle in enumerate(self._handles)
        ]
        num_open = len(self._handles)
        while num_open:
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                num_open -= 1
            else:
                yield event


async def _forward(handle: RequestHandle, first_index: int, events: _Events) -> None:
    """Put a handle's events into the queue, then None; or the exception that ended them."""
    try:
        async for event in handle:
            events.put_nowait(replace(event, index=first_index + event.index))
    except Exception as error:
        events.put_nowait(error)
    else:
        events.put_nowait(None)
