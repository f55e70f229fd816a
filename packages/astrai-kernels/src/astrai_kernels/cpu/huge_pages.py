"""Memory for weights in huge pages: a step reads all of it, and finding pages costs time too.

With pages of 4 KiB two cores of the machine this was measured on read 26 GB/s, with pages of
2 MiB 35. The system's default gives huge pages only to those who ask.
"""

import contextlib
import mmap
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
_CHUNK_BYTES = 16 * _HUGE_PAGE
_ALIGNMENT = 64


@dataclass(eq=False)
class HugePageArena:
    """Cuts tensors from large chunks; a chunk is freed with the last of its tensors.

    Attributes:
        chunk_bytes: of a chunk; a larger tensor gets one of its own.
    """

    chunk_bytes: int = _CHUNK_BYTES
    _chunk: Tensor | None = None
    _used: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def zeros(self, size: int) -> Tensor:
        """A uint8 tensor of zeros that begins at a multiple of 64 bytes.

        Args:
            size: in bytes, at least 1.
        """
        if size > self.chunk_bytes // 4:
            return _map(size)
        with self._lock:
            if self._chunk is None or self._used + size > self.chunk_bytes:
                self._chunk, self._used = _map(self.chunk_bytes), 0
            begin = self._used
            self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
            return self._chunk[begin : begin + size]


def _map(size: int) -> Tensor:
    """Fresh zeroed memory that begins with a huge page; untouched parts of it cost nothing."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without any: small pages serve as well
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_PAGE
    return whole[begin : begin + size]
