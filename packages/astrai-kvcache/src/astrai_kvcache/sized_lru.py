"""How much may be kept, and what goes first."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from astrai_kvcache.errors import InvalidArgumentError

Key = TypeVar("Key", bound=Hashable)


class SizedLru(Generic[Key]):
    """The sizes of things that are kept, the least recently used first, bounded in sum.

    Args:
        max_bytes: the bound.

    Attributes:
        max_bytes: the bound.
        num_bytes: the sum.

    Raises:
        InvalidArgumentError: the bound is below 1.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes must be at least 1, not {max_bytes}.")
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._sizes: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        """Number of things kept."""
        return len(self._sizes)

    def __contains__(self, key: Key) -> bool:
        """Whether something is kept; changes nothing."""
        return key in self._sizes

    def touch(self, key: Key) -> bool:
        """Whether something is kept; it becomes the most recently used."""
        if key not in self._sizes:
            return False
        self._sizes.move_to_end(key)
        return True

    def add(self, key: Key, size: int) -> list[Key]:
        """Keep something new that fits the bound; returns what has to go for it."""
        gone = []
        while self.num_bytes + size > self.max_bytes:
            oldest, freed = self._sizes.popitem(last=False)
            self.num_bytes -= freed
            gone.append(oldest)
        self._sizes[key] = size
        self.num_bytes += size
        return gone

    def remove(self, key: Key) -> None:
        """Keep something no longer; does nothing if it is not kept."""
        self.num_bytes -= self._sizes.pop(key, 0)

    def clear(self) -> list[Key]:
        """Keep nothing; returns what was kept."""
        gone = list(self._sizes)
        self._sizes.clear()
        self.num_bytes = 0
        return gone
