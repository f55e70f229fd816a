"""Carries events from the engine's thread to whoever waits for them.

All events of a step that go to the same asyncio loop travel in one wake-up, however many
streams they belong to.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from astrai_engine.events import Event

logger = logging.getLogger(__name__)


class EventSink(Protocol):
    """Where the events of one request go.

    ``loop`` is the asyncio loop that ``deliver`` has to run on, or None if it may run on the
    engine's own thread; it must return at once.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The asyncio loop to deliver on, or None."""
        ...

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events, in the order they happened."""
        ...


class Outbox:
    """Collects the events of a step and sends them at its end."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[EventSink, list[Event]]] = {}

    def add(self, sink: EventSink, event: Event) -> None:
        """Keep an event for the next :meth:`flush`."""
        self._events.setdefault(id(sink), (sink, []))[1].append(event)

    def flush(self) -> list[EventSink]:
        """Send everything collected.

        Returns:
            The sinks that can't be reached any more: their asyncio loop is closed, or they
            raised. Their requests have nobody left to read them.
        """
        unreachable: list[EventSink] = []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[EventSink, list[Event]]]] = {}
        for sink, events in self._events.values():
            if sink.loop is None:
                try:
                    sink.deliver(events)
                except Exception:
                    logger.exception("A callback failed; its request is aborted.")
                    unreachable.append(sink)
            else:
                by_loop.setdefault(sink.loop, []).append((sink, events))
        self._events.clear()
        for loop, deliveries in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver_all, deliveries)
            except RuntimeError:  # the loop was closed with requests still running
                unreachable.extend(sink for sink, _ in deliveries)
        return unreachable


def _deliver_all(deliveries: list[tuple[EventSink, list[Event]]]) -> None:
    for sink, events in deliveries:
        sink.deliver(events)
