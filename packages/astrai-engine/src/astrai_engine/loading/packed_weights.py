"""How others store quantised projections: which tensors, and what values they stand for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from astrai_engine.errors import ModelLoadError

Parts = Callable[[str], torch.Tensor | None]
"""Gives one of the tensors that make up a projection by its suffix; None where it is absent."""

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of an integer hold each of eight neighbours in AWQ."""


class StoredWeight(Protocol):
    """One way to store a projection."""

    @property
    def marker(self) -> str:
        """The suffix of the tensor that tells that a projection is stored so."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Suffixes of all its tensors."""

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """Of the dense weight."""

    def decode(self, parts: Parts) -> torch.Tensor:
        """The dense weight, float32 ``[rows, columns]``."""


WeightFormats = Sequence[StoredWeight]


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A weight in 8 bits, integer or floating, with scales of a row, a group, a block or all.

    Attributes:
        marker: the suffix of the scales, which tells that a projection is stored so.
        parts: suffixes of all its tensors.
        block: rows and columns with one scale; None where a scale is for equal shares.
    """

    marker: str = "weight_scale"
    parts: tuple[str, ...] = ("weight", "weight_scale", "weight_zero_point", "input_scale")
    block: tuple[int, int] | None = None

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """See `StoredWeight`."""
        return tuple(_needed(parts, "weight").shape)

    def decode(self, parts: Parts) -> torch.Tensor:
        """See `StoredWeight`."""
        values = _needed(parts, "weight").float()
        zero = parts("weight_zero_point")
        if zero is not None:
            values -= _spread(zero.float(), values.shape)
        scale = _needed(parts, self.marker).float()
        if self.block is not None:
            for dim, size in enumerate(self.block):
                scale = scale.repeat_interleave(size, dim).narrow(dim, 0, values.shape[dim])
        return values * _spread(scale, values.shape)


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """compressed-tensors' ``pack-quantized``: neighbours in a row share an integer of 32 bits.

    Attributes:
        bits: of a value.
        marker: see `ScaledWeight`.
        parts: alike.
    """

    bits: int
    marker: str = "weight_packed"
    parts: tuple[str, ...] = (
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
    )  # fmt: skip

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """See `StoredWeight`."""
        return tuple(_needed(parts, "weight_shape").tolist())

    def decode(self, parts: Parts) -> torch.Tensor:
        """See `StoredWeight`."""
        rows, columns = self.shape(parts)
        middle = 1 << (self.bits - 1)
        values = _unpacked(_needed(parts, "weight_packed"), self.bits)[:, :columns] - middle
        scale = _needed(parts, "weight_scale").float()
        zero = parts("weight_zero_point")
        if zero is not None:
            zero = _unpacked(zero.T.contiguous(), self.bits)[:, :rows].T - middle
        groups = parts("weight_g_idx")
        if groups is not None:
            groups = groups.long()
            centre = 0 if zero is None else zero[:, groups]
            return (values - centre) * scale[:, groups]
        centre = 0 if zero is None else _spread(zero.float(), values.shape)
        return (values - centre) * _spread(scale, values.shape)


@dataclass(frozen=True, slots=True)
class GPTQWeight:
    """GPTQ: columns first, neighbours in a column share an integer of 32 bits.

    Attributes:
        bits: of a value.
        zero_offset: what stored zero points lack: 1 but for the second version of the format.
        group_size: neighbours in a column with one scale, where the checkpoint has no ``g_idx``.
        marker: see `ScaledWeight`.
        parts: alike.
    """

    bits: int
    zero_offset: int
    group_size: int
    marker: str = "qweight"
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """See `StoredWeight`."""
        packed, rows = _needed(parts, "qweight").shape
        return rows, packed * 32 // self.bits

    def decode(self, parts: Parts) -> torch.Tensor:
        """See `StoredWeight`."""
        values = _unpacked(_needed(parts, "qweight").T.contiguous(), self.bits)
        zeros = (_unpacked(_needed(parts, "qzeros"), self.bits) + self.zero_offset).float()
        scales, groups = _needed(parts, "scales").float(), parts("g_idx")
        if groups is None:
            groups = torch.arange(values.shape[1]) // self.group_size
        groups = groups.long()
        return (values - zeros.T[:, groups]) * scales.T[:, groups]


@dataclass(frozen=True, slots=True)
class AWQWeight:
    """AWQ: columns first, eight neighbours in a row, out of order, share an integer of 32 bits.

    Attributes:
        marker: see `ScaledWeight`.
        parts: alike.
    """

    marker: str = "qweight"
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales")

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """See `StoredWeight`."""
        columns, packed = _needed(parts, "qweight").shape
        return packed * 8, columns

    def decode(self, parts: Parts) -> torch.Tensor:
        """See `StoredWeight`."""
        values = _in_awq_order(_needed(parts, "qweight"))
        zeros = _in_awq_order(_needed(parts, "qzeros"))
        scales = _needed(parts, "scales").float()
        size = values.shape[0] // scales.shape[0]
        dense = (values - zeros.repeat_interleave(size, 0)) * scales.repeat_interleave(size, 0)
        return dense.T.contiguous()


def _compressed_tensors(settings: Mapping[str, Any]) -> WeightFormats:
    groups = settings.get("config_groups") or {}
    bits = {(group.get("weights") or {}).get("num_bits", 8) for group in groups.values()}
    kind = settings.get("format", "dense")
    if kind in ("int-quantized", "float-quantized", "naive-quantized", "dense"):
        return (ScaledWeight(),)
    if kind == "pack-quantized" and len(bits) == 1 and bits <= {2, 4, 8}:
        return (PackedGroups(bits.pop()),)
    raise _refusal(f"compressed-tensors' {kind} with {sorted(bits)} bits")


def _gptq(settings: Mapping[str, Any]) -> WeightFormats:
    bits = settings.get("bits")
    if bits not in (2, 4, 8):
        raise _refusal(f"GPTQ with {bits} bits")
    offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    return (GPTQWeight(bits, offset, settings.get("group_size", 128)),)


def _awq(settings: Mapping[str, Any]) -> WeightFormats:
    bits, version = settings.get("bits", 4), str(settings.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise _refusal(f"AWQ in version {version} with {bits} bits")
    return (AWQWeight(),)


def _fp8(settings: Mapping[str, Any]) -> WeightFormats:
    rows, columns = settings.get("weight_block_size") or (128, 128)
    parts = ("weight", "weight_scale_inv", "input_scale")
    return ScaledWeight("weight_scale_inv", parts, (rows, columns)), ScaledWeight()


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], WeightFormats]] = {
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
}
"""The formats of a checkpoint by the name of its quantisation, from its settings."""


def _refusal(what: str) -> ModelLoadError:
    return ModelLoadError(
        f"The checkpoint is quantised as {what}, which is not supported; use the original "
        "checkpoint, and quantization int8 or int4."
    )


def _needed(parts: Parts, name: str) -> torch.Tensor:
    tensor = parts(name)
    if tensor is None:
        raise ModelLoadError(f"A quantised projection has no {name}; download the model again.")
    return tensor


def _unpacked(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Neighbours in a row that share an integer, the first in its lowest bits: ``[rows, all]``."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return values.flatten(1)


def _in_awq_order(packed: torch.Tensor) -> torch.Tensor:
    values = _unpacked(packed, 4).view(packed.shape[0], -1, 8)
    return values[..., list(_AWQ_ORDER)].flatten(1).float()


def _spread(small: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """One value for each row or equal share of a row, repeated to all of its values."""
    if small.ndim < 2:
        small = small.reshape(-1, 1)
    for dim, size in enumerate(shape):
        if small.shape[dim] not in (1, size):
            small = small.repeat_interleave(size // small.shape[dim], dim)
    return small
