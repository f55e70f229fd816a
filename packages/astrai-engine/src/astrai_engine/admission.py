"""The gate in front of the engine: a bounded number of open requests, and none while draining."""

import threading

from astrai_engine.errors import EngineUnavailableError, QueueFullError

_MIN_RETRY, _MAX_RETRY = 1.0, 60.0


class Admission:
    """Counts the choices that are running or waiting.

    Args:
        max_batch_size: choices that run at once.
        max_queue: choices that may wait besides.
    """

    def __init__(self, max_batch_size: int, max_queue: int) -> None:
        self._max_batch_size = max_batch_size
        self._max_open = max_batch_size + max_queue
        self._num_open = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def check(self, count: int) -> None:
        """Refuse now what :meth:`enter` would refuse, before any work is spent on it."""
        with self._changed:
            self._check(count, _MIN_RETRY)

    def enter(self, count: int, seconds_per_request: float, *, wait: bool = False) -> None:
        """Let ``count`` choices in, all or none.

        Args:
            count: choices of one request.
            seconds_per_request: how long one takes at present, for the retry estimate.
            wait: block until there is room, unless there never will be.

        Raises:
            QueueFullError: too many wait.
            EngineUnavailableError: the engine is draining.
        """
        with self._changed:
            if wait and count <= self._max_open:
                self._changed.wait_for(lambda: self._is_closed or self._has_room(count))
            self._check(count, seconds_per_request)
            self._num_open += count

    def leave(self, count: int = 1) -> None:
        """Note that choices have ended."""
        with self._changed:
            self._num_open -= count
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_empty(self, timeout: float | None) -> bool:
        """Wait until all have left; False if ``timeout`` seconds passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_open == 0, timeout)

    def _has_room(self, count: int) -> bool:
        return self._num_open + count <= self._max_open

    def _check(self, count: int, seconds_per_request: float) -> None:
        if self._is_closed:
            raise EngineUnavailableError("The server is shutting down; try another one.")
        if not self._has_room(count):
            rounds = self._num_open / self._max_batch_size
            estimate = min(max(seconds_per_request * rounds, _MIN_RETRY), _MAX_RETRY)
            raise QueueFullError(
                f"{self._num_open} requests are running or waiting and {self._max_open} is the "
                f"limit; try again in {estimate:.0f} seconds.",
                retry_after=estimate,
            )
