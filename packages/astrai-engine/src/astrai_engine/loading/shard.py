"""One safetensors file: where its tensors are, read straight into memory that is already ours."""

import json
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from astrai_engine.errors import ModelLoadError

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
_STAGING_VALUES = 1 << 20
"""Values converted at a time, where they are not stored in the dtype they are wanted in."""


OnRead = Callable[[int], None]
"""Told the bytes of each tensor that has been read; called from several threads."""


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
        on_read: told the bytes of each tensor that has been read.

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

    def read(self, name: str) -> torch.Tensor:
        """A tensor as it is stored, on the CPU."""
        stored = self.tensors[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self.read_into(name, tensor)
        return tensor

    def read_into(self, name: str, slot: torch.Tensor) -> None:
        """Fill a tensor of the same shape, in its own dtype and on its own device.

        Args:
            name: a key of ``tensors``.
            slot: contiguous.

        Raises:
            ModelLoadError: the file ended, or could not be read.
        """
        stored, values = self.tensors[name], slot.view(-1)
        if slot.device.type == "cpu" and slot.dtype == stored.dtype:
            self._read_bytes(values, stored.start)
        else:
            staging = torch.empty(min(_STAGING_VALUES, len(values)), dtype=stored.dtype)
            for first in range(0, len(values), _STAGING_VALUES):
                piece = staging[: min(_STAGING_VALUES, len(values) - first)]
                self._read_bytes(piece, stored.start + first * stored.dtype.itemsize)
                values[first : first + len(piece)].copy_(piece)
        if self._on_read is not None:
            self._on_read(stored.num_bytes)

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
