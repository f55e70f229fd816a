"""Reading GGUF files: metadata as Python values, tensors dequantised where they are needed."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize

from astrai_engine.errors import ModelLoadError
from astrai_engine.models.share import Cut

_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")
_PIECE_VALUES = 1 << 16
"""Values dequantised at a time: enough to hide numpy's calls, few enough to stay in cache."""

_TEXTS = [GGUFValueType.ARRAY, GGUFValueType.STRING]


class GGUFFile:
    """An open GGUF file, memory-mapped; of a model in several files, all of them.

    Args:
        path: the file, or any of the parts.
        on_read: told the bytes of each tensor that has been read.

    Raises:
        ModelLoadError: the file is not a readable GGUF file, or another part is missing.
    """

    def __init__(self, path: Path, on_read: Callable[[int], None] | None = None) -> None:
        parts = _parts(path)
        self.path = path
        self._on_read = on_read
        self._reader = parts[0]
        self.tensors: dict[str, ReaderTensor] = {t.name: t for p in parts for t in p.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value: number, string, bool or list; ``default`` when absent."""
        field = self._reader.get_field(key)
        if field is None:
            return default
        if field.types == _TEXTS:  # what `contents` gives, sooner
            return [field.parts[i].tobytes().decode() for i in field.data]
        return field.contents()

    @property
    def architecture(self) -> str:
        """The short name that prefixes the model's own keys, such as ``llama``."""
        return str(self.get("general.architecture", "unknown"))

    def setting(self, key: str, default: Any = None) -> Any:
        """A metadata value under the architecture's own prefix."""
        return self.get(f"{self.architecture}.{key}", default)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def kind(self, name: str) -> str:
        """A tensor's quantisation, such as ``Q4_1`` or ``F32``."""
        return str(self.tensors[name].tensor_type.name)

    def rows(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor as the file stores it: uint8 ``[rows, bytes]``, in the file's own memory."""
        data = self.tensors[name].data.reshape(-1).view(np.uint8)
        self._report(data.nbytes)
        return data.reshape(self.shape(name)[0], -1)

    def rows_cut(self, name: str, cut: Cut) -> np.ndarray[Any, Any] | None:
        """Part of a tensor as the file stores it; None where it begins or ends inside a block."""
        rows = self.rows(name)
        if cut.dim == 0:
            return np.concatenate([rows[each.start : each.stop] for each in cut.ranges])
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[self.tensors[name].tensor_type]
        (columns,) = cut.ranges
        if columns.start % values_per_block or columns.stop % values_per_block:
            return None
        first, last = (end // values_per_block for end in (columns.start, columns.stop))
        return rows[:, first * bytes_per_block : last * bytes_per_block]

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Dequantise a tensor into a new array of its shape; see `read_into`."""
        values = np.empty(self.shape(name), np.float32)
        self.read_into(name, values.reshape(-1))
        return values

    def read_into(self, name: str, out: np.ndarray[Any, Any]) -> None:
        """Dequantise a tensor.

        Args:
            name: a key of ``tensors``.
            out: float32, flat, of the tensor's number of values.

        Raises:
            ModelLoadError: the tensor's quantisation cannot be dequantised.
        """
        data = self.tensors[name].data.reshape(-1).view(np.uint8)
        self._dequantize(name, data, out)
        self._report(data.nbytes)

    def read_cut(self, name: str, cut: Cut) -> np.ndarray[Any, Any]:
        """Dequantise part of a tensor, and as little as possible of the rest.

        Raises:
            ModelLoadError: the tensor's quantisation cannot be dequantised.
        """
        rows, shape = self.rows(name), self.shape(name)
        out = np.empty(cut.shape(shape), np.float32)
        if cut.dim == 0:
            taken = np.concatenate([rows[each.start : each.stop] for each in cut.ranges])
            self._dequantize(name, taken.reshape(-1), out.reshape(-1))
            return out
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[self.tensors[name].tensor_type]
        (columns,) = cut.ranges
        first, last = columns.start // values_per_block, -(-columns.stop // values_per_block)
        taken = rows[:, first * bytes_per_block : last * bytes_per_block]
        width, skipped = (last - first) * values_per_block, columns.start % values_per_block
        step = max(1, _PIECE_VALUES // width)
        for row in range(0, shape[0], step):
            piece = np.ascontiguousarray(taken[row : row + step])
            values = np.empty((len(piece), width), np.float32)
            self._dequantize(name, piece.reshape(-1), values.reshape(-1))
            out[row : row + step] = values[:, skipped : skipped + len(columns)]
        return out

    def _dequantize(self, name: str, data: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Dequantise whole blocks of a tensor, flat, in pieces."""
        kind = self.tensors[name].tensor_type
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        step = max(1, _PIECE_VALUES // values_per_block)
        for block in range(0, data.size // bytes_per_block, step):
            piece = data[None, block * bytes_per_block : (block + step) * bytes_per_block]
            try:
                values = dequantize(piece, kind)
            except NotImplementedError as error:
                raise ModelLoadError(
                    f"Tensor {name} in {self.path} is of type {kind.name}, which "
                    "cannot be dequantised; use a file quantised another way."
                ) from error
            out[block * values_per_block : (block + step) * values_per_block] = values[0]

    @property
    def num_bytes(self) -> int:
        """Of all tensors, as they are stored."""
        return sum(int(tensor.n_bytes) for tensor in self.tensors.values())

    def _report(self, num_bytes: int) -> None:
        if self._on_read is not None:
            self._on_read(num_bytes)


def _parts(path: Path) -> list["FastReader"]:
    """A file with all the parts that belong to it, the first part first."""
    reader = _open(path)
    count = reader.get_field("split.count")
    total = 1 if count is None else int(count.contents())
    if total <= 1:
        return [reader]
    split = _PART.fullmatch(path.name)
    names = (
        [f"{split['stem']}-{n:05}-of-{total:05}.gguf" for n in range(1, total + 1)] if split else []
    )
    absent = [name for name in names if not (path.parent / name).is_file()]
    if path.name not in names or absent:
        missing = f": {', '.join(absent)} are not there" if absent else ""
        raise ModelLoadError(
            f"{path} is one of {total} parts of a model{missing}; put all parts into one folder, "
            "under the names they were made with."
        )
    return [reader if name == path.name else _open(path.parent / name) for name in names]


def _open(path: Path) -> "FastReader":
    try:
        return FastReader(path)
    except (ValueError, KeyError, IndexError, struct.error, OSError) as error:
        raise ModelLoadError(
            f"{path} is not a complete GGUF file ({error}); download it again."
        ) from error


class FastReader(GGUFReader):
    """The library's reader, with plain arrays, and the long ones of a vocabulary parsed in bulk.

    The library makes several memory-mapped arrays for each of the 150,000 entries of a usual
    vocabulary, which takes longer than all the rest of loading a small model.
    """

    def _get(
        self,
        offset: int,
        dtype: np.typing.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> np.typing.NDArray[Any]:
        values = np.frombuffer(self.data, dtype, int(count), offset)
        return values.view(values.dtype.newbyteorder(override_order or self.byte_order))

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if self.byte_order != "I" or raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, count = struct.unpack_from("=IQ", self.data.data, orig_offs)
        if item_type == GGUFValueType.ARRAY or not count:
            return super()._get_field_parts(orig_offs, raw_type)
        start = orig_offs + 12
        types = [GGUFValueType.ARRAY, GGUFValueType(item_type)]
        if item_type == GGUFValueType.STRING:
            parts, end = self._texts(start, count)
            return end - orig_offs, parts, list(range(count)), types
        values = np.frombuffer(self.data, self.gguf_scalar_to_np[types[1]], count, start)
        return start + values.nbytes - orig_offs, [values], [0], types

    def _texts(self, offset: int, count: int) -> tuple[list[Any], int]:
        buffer = self.data.data
        length_at = struct.Struct("=Q").unpack_from
        parts = []
        for _ in range(count):
            start = offset + 8
            offset = start + length_at(buffer, offset)[0]
            parts.append(buffer[start:offset])
        return parts, offset
