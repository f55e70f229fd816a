"""Which page holds which tokens after which prefix."""

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b

from astrai_kvcache.errors import PageStateError


def page_hash(token_ids: Sequence[int], page_idx: int, page_size: int) -> int:
    """A 64-bit cryptographic hash of a page's tokens and of all tokens before it.

    Meant as a short name for a page in logs and between processes. The cache itself compares
    tokens and never trusts a hash.

    Args:
        token_ids: the sequence.
        page_idx: which page of it, counted from 0; the last one may be partial.
        page_size: tokens in a page.

    Returns:
        The hash of ``token_ids[: (page_idx + 1) * page_size]``.
    """
    prefix = array("q", token_ids[: (page_idx + 1) * page_size])
    return int.from_bytes(blake2b(prefix.tobytes(), digest_size=8).digest(), "little")


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Tokens as 8 bytes each: equal exactly when all tokens are."""
    return array("q", token_ids).tobytes()


def normalised_salt(salt: Hashable) -> Hashable:
    """The salt that stands for this one: ``None`` and ``""`` both mean no salt."""
    return None if salt == "" else salt


class _Node:
    """One recorded page, below the page it continues; ``page`` is -1 at the root of a salt."""

    __slots__ = ("children", "key", "page", "parent", "salt")

    def __init__(self, page: int, key: bytes, parent: "_Node | None", salt: Hashable) -> None:
        self.page = page
        self.key = key
        self.parent = parent
        self.salt = salt
        self.children: dict[bytes, _Node] = {}


class PrefixCache:
    """Finds the pages that already hold the start of a sequence.

    A tree of pages: each page hangs below the page it continues and is found by its own tokens, so
    a page is found only when its tokens *and its whole prefix* are equal. The tokens themselves
    are compared (as bytes, in a dict), so there is nothing to collide. Sequences with different
    salts never share; ``None`` and ``""`` both mean no salt.

    Args:
        page_size: tokens in a page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._nodes: dict[int, _Node] = {}
        self._roots: dict[Hashable, _Node] = {}

    def __len__(self) -> int:
        """Number of recorded pages."""
        return len(self._nodes)

    def has_page(self, idx: int) -> bool:
        """Whether page ``idx`` is recorded."""
        return idx in self._nodes

    def lookup(self, token_ids: Sequence[int], *, salt: Hashable = None) -> list[int]:
        """The pages that hold the longest recorded prefix of ``token_ids``, in order.

        Only full pages are found; a query changes nothing.
        """
        hits: list[int] = []
        node = self._roots.get(normalised_salt(salt))
        for logical_page in range(len(token_ids) // self._page_size):
            if node is None:
                break
            node = node.children.get(self._key(token_ids, logical_page))
            if node is not None:
                hits.append(node.page)
        return hits

    def record(
        self,
        page_idx: int,
        token_ids: Sequence[int],
        logical_page_idx: int,
        *,
        salt: Hashable = None,
    ) -> None:
        """Record that page ``page_idx`` holds page ``logical_page_idx`` of ``token_ids``.

        The first page recorded for some content wins: recording the same content again with
        another page changes nothing for the first. A page recorded before with other content
        loses that, and what hangs below it. Nothing is recorded for a partial page, nor below a
        prefix that is not recorded: neither could ever be found.

        Args:
            page_idx: the page in storage.
            token_ids: the sequence, from its first token.
            logical_page_idx: which page of the sequence, counted from 0.
            salt: only sequences of the same salt share pages.
        """
        end = (logical_page_idx + 1) * self._page_size
        if len(token_ids) < end:
            return
        path = self.lookup(token_ids[:end], salt=salt)
        if len(path) > logical_page_idx and path[-1] == page_idx:
            return
        self.evict(page_idx)
        path = self.lookup(token_ids[:end], salt=salt)
        if len(path) == logical_page_idx:
            parent = path[-1] if path else None
            self.insert(parent, token_ids[end - self._page_size : end], page_idx, salt=salt)

    def insert(
        self, parent: int | None, token_ids: Sequence[int], page: int, *, salt: Hashable = None
    ) -> int:
        """Record ``page`` below a recorded page, in time independent of the depth.

        Args:
            parent: the recorded page it continues; None at the start of a sequence.
            token_ids: the page's own tokens, ``page_size`` of them.
            page: the page in storage.
            salt: of the sequence; used when ``parent`` is None, inherited otherwise.

        Returns:
            The page that holds this content: ``page``, or the one recorded first.

        Raises:
            PageStateError: ``page`` is recorded already, with other tokens or another prefix.
        """
        salt = normalised_salt(salt)
        above = self._roots.get(salt) if parent is None else self._nodes[parent]
        key = self._key(token_ids, 0)
        holder = above.children.get(key) if above is not None else None
        if holder is not None:
            return holder.page
        if page in self._nodes:
            raise PageStateError(
                f"Page {page} is recorded with other tokens or another prefix; record each page "
                "with the tokens whose K/V it holds."
            )
        if above is None:
            above = self._roots[salt] = _Node(-1, b"", None, salt)
        node = _Node(page, key, above, above.salt)
        above.children[key] = self._nodes[page] = node
        return page

    def evict(self, idx: int) -> None:
        """Forget page ``idx`` and all pages below it; does nothing for an unrecorded page."""
        node = self._nodes.get(idx)
        if node is None:
            return
        parent = node.parent
        assert parent is not None  # only roots have none, and no page leads to a root
        del parent.children[node.key]
        if not parent.children and parent.parent is None:
            del self._roots[parent.salt]
        below = [node]
        while below:
            gone = below.pop()
            del self._nodes[gone.page]
            below.extend(gone.children.values())

    def clear(self) -> None:
        """Forget everything."""
        self._nodes.clear()
        self._roots.clear()

    def pages(self) -> list[int]:
        """All recorded pages, each after the page it continues."""
        return list(self._nodes)

    def tokens_of(self, page: int) -> tuple[int, ...]:
        """The recorded page's own tokens."""
        return tuple(array("q", self._nodes[page].key))

    def parent_of(self, page: int) -> int:
        """The page that the recorded page continues, -1 at the start of a sequence."""
        parent = self._nodes[page].parent
        assert parent is not None
        return parent.page

    def salt_of(self, page: int) -> Hashable:
        """The salt that the recorded page was stored under."""
        return self._nodes[page].salt

    def _key(self, token_ids: Sequence[int], logical_page: int) -> bytes:
        start = logical_page * self._page_size
        return token_bytes(token_ids[start : start + self._page_size])
