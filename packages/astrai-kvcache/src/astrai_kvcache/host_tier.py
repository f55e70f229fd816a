"""Evicted pages in host memory."""

from astrai_kvcache.sized_lru import SizedLru
from astrai_kvcache.tiers import PageKV, Prefix


class HostTier:
    """Keeps the pages of one pool in host memory; a :class:`astrai_kvcache.PageTier`.

    Args:
        max_bytes: the most memory to use; the least recently used pages go first.

    Raises:
        InvalidArgumentError: ``max_bytes`` is below 1.
    """

    def __init__(self, max_bytes: int) -> None:
        self._lru: SizedLru[Prefix] = SizedLru(max_bytes)
        self._pages: dict[Prefix, PageKV] = {}

    def __len__(self) -> int:
        """Number of pages kept."""
        return len(self._pages)

    @property
    def num_bytes(self) -> int:
        """Memory that K/V and tokens of all pages take."""
        return self._lru.num_bytes

    def __contains__(self, prefix: Prefix) -> bool:
        """Whether the page is kept; changes nothing."""
        return prefix in self._pages

    def get(self, prefix: Prefix) -> PageKV | None:
        """The page, if it is kept."""
        return self._pages.get(prefix)

    def touch(self, prefix: Prefix) -> bool:
        """Whether the page is kept; it becomes the most recently used."""
        return self._lru.touch(prefix)

    def put(self, prefix: Prefix, page: PageKV) -> None:
        """Keep a page, as the most recently used, unless it alone is too large."""
        size = page.num_bytes + len(prefix.tokens)
        if size > self._lru.max_bytes or self._lru.touch(prefix):
            return
        for gone in self._lru.add(prefix, size):
            del self._pages[gone]
        self._pages[prefix] = page

    def clear(self) -> None:
        """Give up all pages."""
        self._lru.clear()
        self._pages.clear()
