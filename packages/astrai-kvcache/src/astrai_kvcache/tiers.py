"""Pages outside the pool: what they are kept by, and what keeps them."""

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol
from weakref import WeakValueDictionary

from torch import Tensor

from astrai_kvcache.prefix_cache import normalised_salt


class Prefix:
    """Everything that the K/V of a page were computed from, the page's own tokens included.

    A chain of pages that shares its beginning with others. A pool has one object for each content,
    so two prefixes are equal exactly when they are the same object.

    Attributes:
        parent: the prefix that the page continues; None for the empty one that all begin with.
        tokens: the page's own tokens, 8 bytes each.
        fingerprint: names the model, and the shape and type of its pages.
        salt: the salt of the sequence, as text.
        digest: a short name, 32 bytes. Whoever finds a page by it compares all tokens, too.
    """

    __slots__ = ("__weakref__", "digest", "fingerprint", "parent", "salt", "tokens")

    def __init__(self, parent: "Prefix | None", tokens: bytes, fingerprint: str, salt: str) -> None:
        self.parent = parent
        self.tokens = tokens
        self.fingerprint = fingerprint
        self.salt = salt
        above = repr((fingerprint, salt)).encode() if parent is None else parent.digest
        self.digest: bytes = blake2b(above + tokens, digest_size=32).digest()

    def all_tokens(self) -> bytes:
        """The tokens from the first on, 8 bytes each; takes time for each page of them."""
        pages = []
        prefix: Prefix | None = self
        while prefix is not None:
            pages.append(prefix.tokens)
            prefix = prefix.parent
        return b"".join(reversed(pages))


class Prefixes:
    """The prefixes of one pool, each of which is there for as long as somebody holds it.

    Args:
        fingerprint: names the model, and the shape and type of its pages.
    """

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        self._roots: WeakValueDictionary[str, Prefix] = WeakValueDictionary()
        self._children: WeakValueDictionary[tuple[Prefix, bytes], Prefix] = WeakValueDictionary()

    def root(self, salt: Hashable) -> Prefix | None:
        """The empty prefix under a salt; None if the salt means nothing outside this process."""
        salt = normalised_salt(salt)
        if not _is_portable(salt):
            return None
        root = self._roots.get(repr(salt))
        if root is None:
            root = self._roots[repr(salt)] = Prefix(None, b"", self._fingerprint, repr(salt))
        return root

    def child(self, parent: Prefix, tokens: bytes) -> Prefix:
        """The prefix that continues ``parent`` with one page of ``tokens``."""
        child = self._children.get((parent, tokens))
        if child is None:
            child = Prefix(parent, tokens, parent.fingerprint, parent.salt)
            self._children[parent, tokens] = child
        return child


@dataclass(frozen=True, slots=True, eq=False)
class PageKV:
    """The K/V of one page, in host memory.

    Attributes:
        keys: ``[n_layers, page_size, n_kv_heads, head_dim]``.
        values: same shape.
    """

    keys: Tensor
    values: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory that the K/V take."""
        return self.keys.nbytes + self.values.nbytes


class PageTier(Protocol):
    """Keeps pages that the pool has evicted, as many as it has room for.

    Nothing it does may raise for want of room or because of what it reads: it keeps a page or not.
    """

    def __contains__(self, prefix: Prefix) -> bool:
        """Whether the page is kept; changes nothing."""

    def get(self, prefix: Prefix) -> PageKV | None:
        """The page, if it is kept and in order; changes nothing in which pages are kept longer."""

    def touch(self, prefix: Prefix) -> bool:
        """Whether the page is kept; it becomes the most recently used."""

    def put(self, prefix: Prefix, page: PageKV) -> None:
        """Keep a page, as the most recently used."""

    def clear(self) -> None:
        """Give up all pages."""


def _is_portable(salt: Hashable) -> bool:
    """Whether ``repr`` tells a salt from all others, in every process."""
    if type(salt) is tuple:
        return all(map(_is_portable, salt))
    return salt is None or type(salt) in (bool, int, str, bytes)
