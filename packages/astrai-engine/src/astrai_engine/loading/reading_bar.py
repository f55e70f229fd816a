"""How far a model's tensors have been read, on a terminal."""

import threading
from types import TracebackType
from typing import Self

from tqdm import tqdm


class ReadingBar:
    """A bar in bytes; a context manager that takes it away in the end.

    Nothing is drawn where standard error is no terminal.

    Args:
        is_shown: draw it there.

    Attributes:
        num_bytes: read so far.
    """

    def __init__(self, *, is_shown: bool = True) -> None:
        self._bar = tqdm(
            desc="Loading",
            total=0,
            unit="B",
            unit_scale=True,
            leave=False,
            disable=None if is_shown else True,
        )
        self._lock = threading.Lock()
        self.num_bytes = 0

    def expect(self, total: int) -> None:
        """Say how many bytes there are to read."""
        self._bar.total = total

    def add(self, num_bytes: int) -> None:
        """Say that so many more bytes have been read; from any thread."""
        with self._lock:
            self.num_bytes += num_bytes
            self._bar.update(num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
