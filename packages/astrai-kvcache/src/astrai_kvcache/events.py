"""What the cache tells about itself: events, counters, capacity."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageStored:
    """A page can now be found by its content.

    Attributes:
        page: the page in storage.
        parent: the page it continues, -1 at the start of a sequence.
        token_ids: the page's own tokens.
        salt: of the sequence.
    """

    page: int
    parent: int
    token_ids: tuple[int, ...]
    salt: Hashable


@dataclass(frozen=True, slots=True)
class PageEvicted:
    """A page can no longer be found; its K/V stay readable until the next step is computed.

    Attributes:
        page: the page in storage.
        parent: the page it continued, -1 at the start of a sequence.
        token_ids: the page's own tokens.
        salt: of the sequence.
    """

    page: int
    parent: int
    token_ids: tuple[int, ...]
    salt: Hashable


PageEvent = PageStored | PageEvicted


@dataclass(slots=True)
class CacheCounters:
    """What the prefix cache has done so far.

    Attributes:
        num_page_hits: pages that new tasks took from the cache, tiers included.
        num_page_restores: those of them that came from a tier.
        num_page_misses: full pages of new tasks that were looked for and not found.
        num_tokens_reused: tokens in the pages hit.
        num_evictions: cached pages given up to make room.
    """

    num_page_hits: int = 0
    num_page_restores: int = 0
    num_page_misses: int = 0
    num_tokens_reused: int = 0
    num_evictions: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How full a pool is, for schedulers; ``free + cached`` pages can be allocated now.

    Attributes:
        num_free_pages: pages that hold nothing worth keeping.
        num_cached_pages: unused pages kept for later hits, given up when room is needed.
        num_in_use_pages: pages of running tasks, pins included.
        num_free_rows: tasks that can still be added.
        max_prompt_tokens: the longest prompt that ``task_alloc`` admits now without any hit.
    """

    num_free_pages: int
    num_cached_pages: int
    num_in_use_pages: int
    num_free_rows: int
    max_prompt_tokens: int
