"""Pages and who uses them."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from astrai_kvcache.errors import DoubleFreeError, PageStateError
from astrai_kvcache.free_runs import FreeRuns


class Allocator:
    """Hands out pages, counts their users, and keeps unused ones for as long as there is room.

    A page is in exactly one state: *free*; *in use* (``ref_count(page) >= 1``); or *cached*, which
    is unused but kept, and evicted, least recently used first, when no page is free. Whoever
    frees the pages of a sequence last page first gets leaves-first eviction: a page then always
    becomes older than the pages it builds on.

    All operations take time proportional to the pages they touch. Not thread-safe: one thread
    owns the cache.

    Args:
        n_pages: number of pages.

    Attributes:
        num_pages: number of pages.
        on_evict: called with each cached page that is given up, before it is handed out again.
    """

    def __init__(self, n_pages: int) -> None:
        self.num_pages = n_pages
        self.on_evict: Callable[[int], None] | None = None
        self._free = FreeRuns(n_pages)
        self._refs = array("i", bytes(4 * n_pages))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages that nobody uses and that hold nothing worth keeping."""
        return self._free.num_pages

    @property
    def num_cached(self) -> int:
        """Pages that nobody uses and that are kept until their room is needed."""
        return len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Pages with at least one user."""
        return self.num_pages - self.num_free - self.num_cached

    def alloc(self) -> int:
        """Take one page for one user, evicting the oldest cached page when none is free.

        Returns:
            The page, or -1 when all pages are in use.
        """
        if not self._free.num_pages:
            if not self._cached:
                return -1
            self._evict_oldest()
        page = self._free.take_one()
        self._refs[page] = 1
        return page

    def alloc_many(self, count: int, *, after: int | None = None) -> list[int] | None:
        """Take ``count`` pages for one user, consecutive ones when possible.

        Args:
            count: how many pages.
            after: a page they should follow directly, if those behind it are free.

        Returns:
            The pages in order, or None, with nothing changed, when there are not enough.
        """
        if count > self.num_free + self.num_cached:
            return None
        while self._free.num_pages < count:
            self._evict_oldest()
        pages = self._free.take(count, after)
        for page in pages:
            self._refs[page] = 1
        return pages

    def free(self, idx: int, keep_cached: bool = False) -> None:
        """Drop one use of page ``idx``.

        Args:
            idx: the page.
            keep_cached: with the last user gone, keep the page cached instead of freeing it.

        Raises:
            DoubleFreeError: nobody uses the page.
        """
        refs = self._refs[idx]
        if refs == 0:
            raise DoubleFreeError(
                f"Page {idx} has no user, so it cannot be freed; free each page once per use."
            )
        self._refs[idx] = refs - 1
        if refs == 1:
            if keep_cached:
                self._cached[idx] = None
            else:
                self._free.add(idx)

    def free_many(self, pages: Sequence[int], is_kept: Callable[[int], bool]) -> None:
        """Drop one use of each page of a sequence, the last page first.

        Args:
            pages: in order; each has a user.
            is_kept: whether to keep a page cached when its last user is gone.
        """
        refs, freed = self._refs, []
        for page in reversed(pages):
            refs[page] -= 1
            assert refs[page] >= 0
            if refs[page]:
                continue
            if is_kept(page):
                self._cached[page] = None
            else:
                freed.append(page)
        self._free.add_many(freed)

    def inc_ref(self, idx: int) -> None:
        """Add one use of page ``idx``, which is in use or cached.

        Raises:
            PageStateError: the page is free, so it holds nothing to share.
        """
        if self._refs[idx] == 0:
            if idx not in self._cached:
                raise PageStateError(f"Page {idx} is free; take it with alloc() instead.")
            del self._cached[idx]
        self._refs[idx] += 1

    def ref_count(self, idx: int) -> int:
        """Number of users of page ``idx``: 0 when it is free or cached."""
        return self._refs[idx]

    def write_states(self, states: bytearray) -> None:
        """Write each page's state: 0 free, 1 cached, ``1 + users`` in use, at most 255.

        Takes time in proportion to the pages, but none of it in Python.

        Args:
            states: one byte a page.
        """
        out = torch.frombuffer(states, dtype=torch.uint8)
        users = torch.frombuffer(self._refs, dtype=torch.int32)
        out.copy_((users + users.sign()).clamp_(max=255))
        if self._cached:
            out[torch.frombuffer(array("q", self._cached), dtype=torch.int64)] = 1

    def touch(self, idx: int) -> None:
        """Make a cached page the most recently used; does nothing for other pages."""
        if idx in self._cached:
            self._cached.move_to_end(idx)

    def uncache(self, idx: int) -> None:
        """Free a cached page without calling ``on_evict``.

        Raises:
            PageStateError: the page is not cached.
        """
        if idx not in self._cached:
            raise PageStateError(f"Page {idx} is not cached; only cached pages can be uncached.")
        del self._cached[idx]
        self._free.add(idx)

    def _evict_oldest(self) -> None:
        page = next(iter(self._cached))
        if self.on_evict is not None:
            self.on_evict(page)
        del self._cached[page]
        self._free.add(page)
