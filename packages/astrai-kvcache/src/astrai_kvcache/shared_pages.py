"""Allocator and prefix cache, kept in agreement."""

from collections.abc import Callable, Hashable, Sequence

from astrai_kvcache.allocator import Allocator
from astrai_kvcache.events import CacheCounters, PageEvent, PageEvicted, PageStored
from astrai_kvcache.prefix_cache import PrefixCache


class SharedPages:
    """Pages that tasks share as long as their content is the same.

    Whoever holds a recorded page holds all the pages it continues, and gives pages back last page
    first. So the allocator's plain LRU order evicts leaves first, and every page that is not in
    use can be allocated.

    Args:
        num_pages: number of pages.
        page_size: tokens in a page.
        prefix_cache: whether to find pages by content at all.

    Attributes:
        allocator: states and users of the pages.
        prefix: content of the pages; None without prefix cache.
        counters: what has happened so far.
        on_event: called with each event once the operation that caused it is done.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool) -> None:
        self.allocator = Allocator(num_pages)
        self.prefix = PrefixCache(page_size) if prefix_cache else None
        self.counters = CacheCounters()
        self.on_event: Callable[[PageEvent], None] | None = None
        self._page_size = page_size
        self._events: list[PageEvent] = []
        if self.prefix is not None:
            self.allocator.on_evict = self._evict

    def find(self, token_ids: Sequence[int], max_tokens: int, salt: Hashable) -> list[int]:
        """The pages that hold the first tokens of a sequence; a query changes nothing.

        Args:
            token_ids: the sequence.
            max_tokens: the most tokens that may be found.
            salt: of the sequence.
        """
        if self.prefix is None:
            return []
        usable = max(0, min(max_tokens, len(token_ids))) // self._page_size * self._page_size
        return self.prefix.lookup(token_ids[:usable], salt=salt)

    def reserve(self, shared: Sequence[int], count: int, *, after: int = -1) -> list[int] | None:
        """Use the ``shared`` pages and ``count`` new ones.

        Args:
            shared: pages in use or cached.
            count: how many pages to take besides.
            after: a page the new ones should follow directly, if possible.

        Returns:
            Shared and new pages, or None, with nothing changed, when there is no room.
        """
        allocator = self.allocator
        num_unused = sum(1 for page in shared if not allocator.ref_count(page))
        if count > allocator.num_free + allocator.num_cached - num_unused:
            return None
        for page in shared:
            allocator.inc_ref(page)
        new = allocator.alloc_many(count, after=after)
        assert new is not None
        return [*shared, *new]

    def release(self, pages: Sequence[int]) -> None:
        """Give back one use of consecutive pages of a sequence; recorded ones stay cached."""
        for page in reversed(pages):
            keep = self.prefix is not None and self.prefix.has_page(page)
            self.allocator.free(page, keep_cached=keep)

    def record(self, parent: int | None, tokens: Sequence[int], page: int, salt: Hashable) -> int:
        """Make ``page`` findable, unless another page holds the same content already.

        Args:
            parent: the recorded page it continues; None at the start of a sequence.
            tokens: the page's own tokens.
            page: the page in storage, in use.
            salt: of the sequence.

        Returns:
            The page that holds the content from now on.
        """
        assert self.prefix is not None
        num_before = len(self.prefix)
        holder = self.prefix.insert(parent, tokens, page, salt=salt)
        if self.on_event is not None and len(self.prefix) > num_before:
            self._note(PageStored, page)
        return holder

    def count_lookup(self, num_found: int, max_tokens: int) -> None:
        """Count a new task's lookup: pages found, and tokens that could have been."""
        if self.prefix is None:
            return
        self.counters.num_page_hits += num_found
        self.counters.num_page_misses += max(max_tokens, 0) // self._page_size - num_found
        self.counters.num_tokens_reused += num_found * self._page_size

    def forget_all(self) -> None:
        """Make all pages unfindable and free the unused ones."""
        if self.prefix is None:
            return
        for page in reversed(self.prefix.pages()):
            if self.on_event is not None:
                self._note(PageEvicted, page)
            if not self.allocator.ref_count(page):
                self.allocator.uncache(page)
        self.prefix.clear()

    def deliver_events(self) -> None:
        """Call ``on_event`` with what has happened since the last time."""
        if self._events and self.on_event is not None:
            events, self._events = self._events, []
            for event in events:
                self.on_event(event)

    def _evict(self, page: int) -> None:
        assert self.prefix is not None
        self.counters.num_evictions += 1
        if self.on_event is not None:
            self._note(PageEvicted, page)
        self.prefix.evict(page)

    def _note(self, event: type[PageStored | PageEvicted], page: int) -> None:
        assert self.prefix is not None
        prefix = self.prefix
        self._events.append(
            event(page, prefix.parent_of(page), prefix.tokens_of(page), prefix.salt_of(page))
        )
