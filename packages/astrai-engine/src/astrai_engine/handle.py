"""Handles of running requests, for threads and for asyncio."""

import asyncio
import queue
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from astrai_engine.events import Event, Failed, Finished


class RequestHandle(ABC):
    """A running request: its identity and a way to end it.

    Attributes:
        request_id: unique in the engine.
        num_prompt_tokens: tokens of the prompt.
        prompt_end: the last 64 characters of its text; empty when it came as token ids.
    """

    def __init__(
        self,
        request_id: str,
        *,
        num_prompt_tokens: int,
        prompt_end: str = "",
        num_choices: int,
        abort: Callable[[str], None],
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.prompt_end = prompt_end
        self._num_open = num_choices
        self._abort = abort
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Make the queue that events wait in."""

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The asyncio loop the events are delivered on, or None."""

    @abstractmethod
    def deliver(self, events: Sequence[Event]) -> None:
        """Take events from the engine."""

    def abort(self) -> None:
        """End the request; harmless when it has already ended."""
        self._abort(self.request_id)

    def _note(self, event: Event) -> Event:
        if isinstance(event, Finished | Failed):
            self._num_open -= 1
        return event


class SyncRequestHandle(RequestHandle):
    """Iterates over the events of a request, blocking until each one is there."""

    def _open(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @property
    def loop(self) -> None:
        """None: events are put into a queue by the engine's own thread."""
        return None

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events from the engine."""
        for event in events:
            self._events.put(event)

    def __iter__(self) -> Iterator[Event]:
        while self._num_open:
            yield self._note(self._events.get())


class AsyncRequestHandle(RequestHandle):
    """Iterates over the events of a request on the asyncio loop that submitted it."""

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The asyncio loop the events are delivered on."""
        return self._loop

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events from the engine; runs on the asyncio loop."""
        for event in events:
            self._events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while self._num_open:
            yield self._note(await self._events.get())
