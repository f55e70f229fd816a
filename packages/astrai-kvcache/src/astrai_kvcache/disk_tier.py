"""Evicted pages on disk, one safetensors file each."""

import ctypes
import logging
import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from astrai_kvcache.sized_lru import SizedLru
from astrai_kvcache.tiers import PageKV, Prefix

try:
    import numpy  # noqa: F401 - safetensors saves through it
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save
except ImportError as error:
    raise ImportError(
        "DiskTier needs safetensors and numpy; install astrai-kvcache[disk]."
    ) from error

_logger = logging.getLogger(__name__)
_PAGE_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_PARTIAL = ".partial"


class DiskTier:
    """Keeps pages in a folder, also from one process to the next; a ``PageTier``.

    A file has the K/V of its page with all that they were computed from: every token from the
    first on, salt and fingerprint. It is served only if these are equal to what is asked for and a
    checksum over everything is right; any other file is removed, with a warning. Files appear
    whole or not at all. When one cannot be written, as on a full disk, that is a warning and the
    last attempt: the pages already there are still served, no others are kept.

    Args:
        folder: where the pages are, made if it is missing. Only one process at a time uses it,
            and nothing else is kept in it.
        max_bytes: the most disk space to use; the least recently used pages go first.

    Raises:
        InvalidArgumentError: ``max_bytes`` is below 1.
        OSError: the folder cannot be made or listed.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self._folder = Path(folder)
        self._lru: SizedLru[str] = SizedLru(max_bytes)
        self._is_writable = True
        self._folder.mkdir(parents=True, exist_ok=True)
        self._find_files()

    def __len__(self) -> int:
        """Number of pages kept."""
        return len(self._lru)

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return self._lru.num_bytes

    @property
    def is_writable(self) -> bool:
        """Whether pages can still be added."""
        return self._is_writable

    def __contains__(self, prefix: Prefix) -> bool:
        """Whether there is a file for the page; what is in it is seen when it is read."""
        return _name(prefix) in self._lru

    def get(self, prefix: Prefix) -> PageKV | None:
        """The page, if it is kept and its file is in order."""
        name = _name(prefix)
        if name not in self._lru:
            return None
        try:
            return _read(self._folder / name, prefix)
        except (OSError, SafetensorError, ValueError) as error:
            _logger.warning("The stored page %s is ignored: %s", self._folder / name, error)
            self._lru.remove(name)
            self._unlink(name)
            return None

    def touch(self, prefix: Prefix) -> bool:
        """Whether the page is kept; it becomes the most recently used."""
        name = _name(prefix)
        if not self._lru.touch(name):
            return False
        with suppress(OSError):  # the order is then lost when the process ends, nothing else
            os.utime(self._folder / name)
        return True

    def put(self, prefix: Prefix, page: PageKV) -> None:
        """Keep a page, as the most recently used, unless it alone is too large."""
        if self.touch(prefix) or not self._is_writable:
            return
        content = _serialised(prefix, page)
        if len(content) > self._lru.max_bytes:
            return
        name = _name(prefix)
        for gone in self._lru.add(name, len(content)):
            self._unlink(gone)
        partial = self._folder / f"{name}{_PARTIAL}"
        try:
            partial.write_bytes(content)
            partial.replace(self._folder / name)
        except OSError as error:
            _logger.warning("No more pages are stored in %s: %s", self._folder, error)
            self._is_writable = False
            self._lru.remove(name)
            self._unlink(partial.name)

    def clear(self) -> None:
        """Remove the files of all pages."""
        for name in self._lru.clear():
            self._unlink(name)

    def _find_files(self) -> None:
        found = []
        for path in self._folder.iterdir():
            if _PAGE_NAME.fullmatch(path.name):
                status = path.stat()
                found.append((status.st_mtime_ns, path.name, status.st_size))
            elif path.name.endswith(_PARTIAL):  # its writer was ended
                self._unlink(path.name)
            else:
                _logger.warning("%s is ignored: it is not a stored page.", path)
        for _, name, size in sorted(found):
            if size > self._lru.max_bytes:
                self._unlink(name)
                continue
            for gone in self._lru.add(name, size):
                self._unlink(gone)

    def _unlink(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("A stored page cannot be removed: %s", error)


def _name(prefix: Prefix) -> str:
    return f"{prefix.digest.hex()}.safetensors"


def _serialised(prefix: Prefix, page: PageKV) -> bytes:
    tokens = torch.frombuffer(bytearray(prefix.all_tokens()), dtype=torch.int64)
    content = {"keys": page.keys, "values": page.values, "tokens": tokens}
    return save(content, _description(prefix, content))


def _read(path: Path, prefix: Prefix) -> PageKV:
    """Read a page's file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        SafetensorError: it is cut off, or something else altogether.
        ValueError: it is not what it should be.
    """
    with safe_open(path, framework="pt") as file:
        content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    if set(content) != {"keys", "values", "tokens"}:
        raise ValueError("it holds something else than a page")
    if metadata != _description(prefix, content):
        raise ValueError("it is of another model or salt, or damaged")
    if bytes(_memory(content["tokens"])) != prefix.all_tokens():
        raise ValueError("it was computed from other tokens")
    return PageKV(content["keys"], content["values"])


def _description(prefix: Prefix, content: dict[str, Tensor]) -> dict[str, str]:
    checksum = blake2b(digest_size=32)
    for name, tensor in sorted(content.items()):
        checksum.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        checksum.update(_memory(tensor))
    return {
        "fingerprint": prefix.fingerprint,
        "salt": prefix.salt,
        "checksum": checksum.hexdigest(),
    }


def _memory(tensor: Tensor) -> "ctypes.Array[ctypes.c_char]":
    """The bytes of a contiguous tensor in host memory, without a copy."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
