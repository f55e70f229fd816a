"""Allocator and prefix cache, kept in agreement."""

from collections.abc import Callable, Hashable, Sequence

from astrai_kvcache.allocator import Allocator
from astrai_kvcache.events import CacheCounters, PageEvent, PageEvicted, PageStored
from astrai_kvcache.offload import Offload
from astrai_kvcache.prefix_cache import PrefixCache


class SharedPages:
    """Pages that tasks share as long as their content is the same.

    Whoever holds a recorded page holds all the pages it continues, and gives pages back last page
    first. So the allocator's plain LRU order evicts leaves first, and every page that is not in
    use can be allocated.

    Args:
        num_pages: number of pages.
        page_size: tokens in a page.
        on_event: called with each event once the operation that caused it is done.
        prefix_cache: whether to find pages by content at all.

    Attributes:
        allocator: states and users of the pages.
        prefix: content of the pages; None without prefix cache.
        counters: what has happened so far.
        pins: pages that are in use by nobody but their pin.
        offload: what copies pages to tiers; None without tiers.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        on_event: Callable[[PageEvent], None] | None = None,
        *,
        prefix_cache: bool,
    ) -> None:
        self.allocator = Allocator(num_pages)
        self.prefix = PrefixCache(page_size) if prefix_cache else None
        self.counters = CacheCounters()
        self.pins: dict[str, list[int]] = {}
        self.offload: Offload | None = None
        self._on_event = on_event
        self._page_size = page_size
        self._events: list[PageEvent] = []
        self._is_findable: Callable[[int], bool] = lambda _: False
        if self.prefix is not None:
            self._is_findable = self.prefix.has_page
            self.allocator.on_evict = self._evict

    def find(self, token_ids: Sequence[int], salt: Hashable) -> list[int]:
        """The pages that hold the first tokens of a sequence; a query changes nothing."""
        return [] if self.prefix is None else self.prefix.lookup(token_ids, salt=salt)

    def has_room(self, shared: Sequence[int], count: int) -> bool:
        """Whether the ``shared`` pages and ``count`` new ones can be used."""
        num_unused = sum(1 for page in shared if not self.allocator.ref_count(page))
        return count <= self.allocator.num_free + self.allocator.num_cached - num_unused

    def use(self, pages: Sequence[int]) -> None:
        """Add one use of each of the ``pages``, which are in use or cached."""
        for page in pages:
            self.allocator.inc_ref(page)

    def reserve(
        self, shared: Sequence[int], count: int, *, after: int | None = None
    ) -> list[int] | None:
        """Use the ``shared`` pages and ``count`` new ones.

        Args:
            shared: pages in use or cached.
            count: how many pages to take besides.
            after: a page the new ones should follow directly, if possible.

        Returns:
            Shared and new pages, or None, with nothing changed, when there is no room.
        """
        if not self.has_room(shared, count):
            return None
        self.use(shared)
        new = self.allocator.alloc_many(count, after=after)
        assert new is not None
        return [*shared, *new]

    def release(self, pages: Sequence[int]) -> None:
        """Give back one use of consecutive pages of a sequence; recorded ones stay cached."""
        self.allocator.free_many(pages, self._is_findable)

    def pin(self, pin_id: str, pages: Sequence[int]) -> None:
        """Use ``pages`` under a name, instead of those that were used under it before."""
        self.use(pages)
        self.release(self.pins.pop(pin_id, []))
        if pages:
            self.pins[pin_id] = list(pages)

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
        if len(self.prefix) > num_before:
            if self.offload is not None:
                self.offload.follow(page, parent, tokens, salt)
            if self._on_event is not None:
                self._note(PageStored, page)
        return holder

    def count_lookup(self, num_found: int, num_restored: int, max_tokens: int) -> None:
        """Count a new task's lookup: pages found, and tokens that could have been."""
        if self.prefix is None:
            return
        self.counters.num_page_hits += num_found
        self.counters.num_page_restores += num_restored
        self.counters.num_page_misses += max_tokens // self._page_size - num_found
        self.counters.num_tokens_reused += num_found * self._page_size

    def forget_all(self) -> None:
        """Make all pages unfindable, and free the unused and pinned ones."""
        for pin_id in list(self.pins):
            self.pin(pin_id, ())
        if self.prefix is None:
            return
        if self.offload is not None:
            self.offload.clear()
        for page in reversed(self.prefix.pages()):
            if self._on_event is not None:
                self._note(PageEvicted, page)
            if not self.allocator.ref_count(page):
                self.allocator.uncache(page)
        self.prefix.clear()

    def store_all(self) -> None:
        """Copy all recorded pages to the tiers, a page after those that continue it."""
        if self.prefix is not None and self.offload is not None:
            for page in reversed(self.prefix.pages()):
                self.offload.store(page)

    def deliver_events(self) -> None:
        """Call ``on_event`` with what has happened since the last time."""
        if self._events:
            assert self._on_event is not None  # for whom they were noted
            events, self._events = self._events, []
            for event in events:
                self._on_event(event)

    def _evict(self, page: int) -> None:
        assert self.prefix is not None
        self.counters.num_evictions += 1
        if self.offload is not None:
            self.offload.store(page)
            self.offload.forget(page)
        if self._on_event is not None:
            self._note(PageEvicted, page)
        self.prefix.evict(page)

    def _note(self, event: type[PageStored | PageEvicted], page: int) -> None:
        assert self.prefix is not None
        prefix = self.prefix
        self._events.append(
            event(page, prefix.parent_of(page), prefix.tokens_of(page), prefix.salt_of(page))
        )
