"""What happens to pages that the pool gives up, when there are tiers to keep them."""

import logging
from collections.abc import Hashable, Iterator, Sequence
from itertools import takewhile

from astrai_kvcache.errors import InvalidArgumentError
from astrai_kvcache.prefix_cache import token_bytes
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.tiers import PageKV, PageTier, Prefix, Prefixes

_logger = logging.getLogger(__name__)


class Offload:
    """Copies pages to tiers before the pool reuses them, and back when they are wanted again.

    Each page goes to every tier, and comes from the first that has it. It is copied only to tiers
    that do not have it yet.

    Args:
        storage: the K/V of the pool.
        page_size: tokens in a page.
        tiers: fastest first.
        fingerprint: names the model.

    Raises:
        InvalidArgumentError: the fingerprint is empty.
    """

    def __init__(
        self, storage: KVStorage, page_size: int, tiers: Sequence[PageTier], fingerprint: str
    ) -> None:
        if not fingerprint:
            raise InvalidArgumentError(
                "Tiers need a fingerprint that tells this model's K/V from those of all others."
            )
        self._storage = storage
        self._page_size = page_size
        self._tiers = tiers
        self._form = _form(PageKV(*storage.read(0, page_size)))
        self._prefixes = Prefixes(repr((fingerprint, self._form)))
        self._by_page: dict[int, Prefix] = {}

    def prefix_of(self, page: int) -> Prefix | None:
        """What the recorded page is kept by; None if its salt keeps it out of the tiers."""
        return self._by_page.get(page)

    def root_of(self, salt: Hashable) -> Prefix | None:
        """What sequences of a salt begin with; None for a salt that is kept out of the tiers."""
        return self._prefixes.root(salt)

    def follow(
        self, page: int, parent: int | None, token_ids: Sequence[int], salt: Hashable
    ) -> None:
        """Note that ``page`` has been recorded."""
        above = self.root_of(salt) if parent is None else self._by_page.get(parent)
        if above is not None:
            self._by_page[page] = self._prefixes.child(above, token_bytes(token_ids))

    def store(self, page: int) -> None:
        """Copy a recorded page to the tiers that do not have it."""
        prefix = self._by_page.get(page)
        if prefix is None:
            return
        lacking = [tier for tier in self._tiers if not tier.touch(prefix)]
        if lacking:
            content = PageKV(*self._storage.read(page * self._page_size, self._page_size))
            for tier in lacking:
                tier.put(prefix, content)

    def forget(self, page: int) -> None:
        """Note that ``page`` is no longer recorded."""
        self._by_page.pop(page, None)

    def clear(self) -> None:
        """Forget everything, in the tiers, too."""
        self._by_page.clear()
        for tier in self._tiers:
            tier.clear()

    def count(self, token_ids: Sequence[int], hits: Sequence[int], salt: Hashable) -> int:
        """How many pages the tiers have behind ``hits``, the first of ``token_ids``."""
        wanted = self._behind(token_ids, hits, salt)
        return sum(1 for _ in takewhile(self._is_kept, wanted))

    def fetch(
        self, token_ids: Sequence[int], hits: Sequence[int], salt: Hashable
    ) -> list[tuple[Prefix, PageKV]]:
        """Read the pages that the tiers have behind ``hits``."""
        found = []
        for prefix in self._behind(token_ids, hits, salt):
            page = self._get(prefix)
            if page is None:
                break
            found.append((prefix, page))
        return found

    def restore(self, pages: Sequence[int], fetched: Sequence[tuple[Prefix, PageKV]]) -> None:
        """Write what was fetched into pages of the pool."""
        for page, (_, content) in zip(pages, fetched, strict=True):
            self._storage.write(page * self._page_size, content.keys, content.values)
        for prefix, _ in reversed(fetched):  # so that a page outlives those that continue it
            for tier in self._tiers:
                tier.touch(prefix)

    def _behind(
        self, token_ids: Sequence[int], hits: Sequence[int], salt: Hashable
    ) -> Iterator[Prefix]:
        prefix = self._by_page.get(hits[-1]) if hits else self.root_of(salt)
        for end in range((len(hits) + 1) * self._page_size, len(token_ids) + 1, self._page_size):
            if prefix is None:
                return
            prefix = self._prefixes.child(
                prefix, token_bytes(token_ids[end - self._page_size : end])
            )
            yield prefix

    def _is_kept(self, prefix: Prefix) -> bool:
        return any(prefix in tier for tier in self._tiers)

    def _get(self, prefix: Prefix) -> PageKV | None:
        for tier in self._tiers:
            page = tier.get(prefix)
            if page is None:
                continue
            if _form(page) == self._form:
                return page
            _logger.warning("A stored page is ignored: its form is %s.", _form(page))
        return None


def _form(page: PageKV) -> str:
    """Shape and type of a page."""
    return " ".join(f"{tuple(x.shape)} {x.dtype}" for x in (page.keys, page.values))
