"""One safetensors file: where its tensors are, read straight into memory that is already ours."""

import functools
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from astrai_engine.errors import ModelLoadError
from astrai_engine.models.share import Cut

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100_000_000
_PIECE_BYTES = 8 << 20
"""Read at a time: large enough for a disk, small enough for several threads to stay close to each
other in the file and for what is converted to stay in the processor's cache."""

OnRead = Callable[[int], None]
"""Told the bytes of each piece that has been read; called from several threads."""

Filling = Callable[[], None]
"""Fills a part of a tensor; may run on any thread."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: as it is stored.
        shape: rows first.
        start: where its bytes begin.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


class Shard:
    """An open file. Its tensors may be read from several threads at once.

    Bytes go from the file into the tensor they are for, by reads of the operating system: neither
    a mapping whose pages are touched one by one nor a copy in between slows them down.

    Args:
        path: the file.
        on_read: told the bytes of each piece that has been read.

    Attributes:
        path: the file.
        tensors: what is in it, by name.

    Raises:
        ModelLoadError: it is not a complete safetensors file.
    """

    def __init__(self, path: Path, on_read: OnRead | None = None) -> None:
        self.path = path
        self._on_read = on_read
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self.tensors = _read_header(self._descriptor)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{path} can't be read ({error}); download it again.") from error

    def read(self, name: str, cut: Cut | None = None) -> torch.Tensor:
        """A tensor as it is stored, or a part of it, on the CPU."""
        stored = self.tensors[name]
        shape = stored.shape if cut is None else cut.shape(stored.shape)
        tensor = torch.empty(shape, dtype=stored.dtype)
        for fill in self.fillings(name, tensor, cut):
            fill()
        return tensor

    def fillings(self, name: str, slot: torch.Tensor, cut: Cut | None = None) -> Iterator[Filling]:
        """What fills a tensor of its shape, or of a part's, in its own dtype on its own device.

        Args:
            name: a key of ``tensors``.
            slot: contiguous.
            cut: the part; None is all. Nothing else is read.

        Returns:
            Parts, in the order of the file. Each raises ModelLoadError where the file ends or
            can't be read.
        """
        stored, values = self.tensors[name], slot.view(-1)
        if cut is not None:
            yield functools.partial(self._fill_cut, values, stored, cut)
            return
        step = _PIECE_BYTES // stored.dtype.itemsize
        for first in range(0, len(values), step):
            start = stored.start + first * stored.dtype.itemsize
            yield functools.partial(self._fill, values[first : first + step], stored.dtype, start)

    def _fill_cut(self, target: torch.Tensor, stored: StoredTensor, cut: Cut) -> None:
        is_ready = target.device.type == "cpu" and target.dtype == stored.dtype
        values = target if is_ready else torch.empty(len(target), dtype=stored.dtype)
        filled = 0
        for first, count in cut.runs(stored.shape):
            start = stored.start + first * stored.dtype.itemsize
            self._read_bytes(values[filled : filled + count], start)
            filled += count
        if not is_ready:
            target.copy_(values)
        if self._on_read is not None:
            self._on_read(stored.num_bytes)

    def _fill(self, target: torch.Tensor, stored: torch.dtype, start: int) -> None:
        is_ready = target.device.type == "cpu" and target.dtype == stored
        values = target if is_ready else torch.empty(len(target), dtype=stored)
        self._read_bytes(values, start)
        if not is_ready:
            target.copy_(values)
        if self._on_read is not None:
            self._on_read(values.nbytes)

    def _read_bytes(self, target: torch.Tensor, start: int) -> None:
        """Fill a flat tensor on the CPU with the bytes from a place in the file on."""
        left = memoryview(target.view(torch.uint8).numpy().data)
        while left:
            try:
                count = os.preadv(self._descriptor, [left], start)
            except OSError as error:
                raise ModelLoadError(f"{self.path} can't be read ({error}); try again.") from error
            if not count:
                raise ModelLoadError(f"{self.path} ends too early; download it again.")
            left, start = left[count:], start + count


def _read_header(descriptor: int) -> dict[str, StoredTensor]:
    """Where the tensors are, checked against the size of the file.

    Raises:
        ValueError, KeyError, TypeError: the header is damaged, or bytes are missing.
    """
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or not 0 < length <= min(size - 8, _LONGEST_HEADER):
        raise ValueError("its header is not complete")
    tensors = {}
    for name, entry in json.loads(os.pread(descriptor, length, 8)).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of type {entry['dtype']}")
        start, end = entry["data_offsets"]
        stored = StoredTensor(_DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + start)
        if start < 0 or end - start != stored.num_bytes or 8 + length + end > size:
            raise ValueError(f"{name} is not all there")
        tensors[name] = stored
    return tensors
