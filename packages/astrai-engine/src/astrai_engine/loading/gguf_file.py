"""Reading GGUF files: metadata as Python values, tensors dequantised where they are needed."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize

from astrai_engine.errors import ModelLoadError

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
        tensor = self.tensors[name]
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[tensor.tensor_type]
        data = tensor.data.reshape(-1).view(np.uint8)
        step = max(1, _PIECE_VALUES // values_per_block)
        for block in range(0, data.size // bytes_per_block, step):
            piece = data[None, block * bytes_per_block : (block + step) * bytes_per_block]
            try:
                values = dequantize(piece, tensor.tensor_type)
            except NotImplementedError as error:
                raise ModelLoadError(
                    f"Tensor {name} in {self.path} is of type {tensor.tensor_type.name}, which "
                    "cannot be dequantised; use a file quantised another way."
                ) from error
            out[block * values_per_block : (block + step) * values_per_block] = values[0]
        self._report(data.nbytes)

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
    """The library's reader, with the long arrays of a vocabulary parsed in bulk.

    The library makes several memory-mapped arrays for each of the 150,000 entries of a usual
    vocabulary, which takes longer than all the rest of loading a small model.
    """

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
