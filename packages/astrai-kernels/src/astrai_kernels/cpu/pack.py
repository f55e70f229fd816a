"""Bringing weights into the layout the native kernels read."""

import torch
from torch import Tensor

from astrai_kernels.cpu.huge_pages import HugePageArena
from astrai_kernels.cpu.library import load_library
from astrai_kernels.cpu.weights import (
    GROUP_SIZE,
    BlockFormat,
    PackedFormat,
    PackedWeight,
    as_float32,
)
from astrai_kernels.errors import ShapeError

_DENSE_SOURCE = 0
_memory = HugePageArena()


def pack_blocks(
    blocks: Tensor,
    source: BlockFormat,
    *,
    bias: Tensor | None = None,
    paired: bool = False,
    activation_bits: int = 16,
) -> PackedWeight:
    """Pack rows of GGUF blocks, without changing a value.

    Args:
        blocks: uint8 ``[out_features, in_features / 32 * source.block_bytes]``.
        source: the blocks' format.
        bias: ``[out_features]``, or None.
        paired: the rows are gate rows, then as many up rows, for `norm_gate_up`.
        activation_bits: 16, or 8 for faster and less exact products.

    Raises:
        NativeUnavailableError: there are no native kernels here.
        ShapeError: the rows are not whole blocks, or ``activation_bits`` is another number.
    """
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % source.block_bytes:
        raise ShapeError(
            f"{source.name} blocks must be uint8 [rows, a multiple of {source.block_bytes}], "
            f"not {blocks.dtype} {tuple(blocks.shape)}."
        )
    in_features = blocks.shape[1] // source.block_bytes * GROUP_SIZE
    number, _, packed = source.value
    shape = (blocks.shape[0], in_features)
    tiles = _pack(blocks.contiguous(), number, packed, shape, paired)
    return PackedWeight(packed, shape, tiles, _bias(bias, shape), paired, activation_bits)


def pack_dense(
    values: Tensor,
    *,
    bias: Tensor | None = None,
    paired: bool = False,
    packed: PackedFormat = PackedFormat.F32,
) -> PackedWeight:
    """Pack dense values.

    Args:
        values: ``[out_features, in_features]`` of any float dtype.
        bias: ``[out_features]``, or None.
        paired: the rows are gate rows, then as many up rows, for `norm_gate_up`.
        packed: ``F32``, or ``BF16``, which rounds and needs an even ``in_features``.

    Raises:
        NativeUnavailableError: there are no native kernels here.
        ShapeError: the shape does not fit the format.
    """
    if values.dim() != 2 or (packed is PackedFormat.BF16 and values.shape[1] % 2):
        raise ShapeError(
            f"{packed.name} values must be [out_features, in_features], in_features even for "
            f"BF16, not {tuple(values.shape)}."
        )
    if packed not in (PackedFormat.F32, PackedFormat.BF16):
        raise ShapeError(f"Dense values cannot be packed as {packed.name}; quantise them first.")
    shape = (values.shape[0], values.shape[1])
    tiles = _pack(as_float32(values), _DENSE_SOURCE, packed, shape, paired)
    return PackedWeight(packed, shape, tiles, _bias(bias, shape), paired)


def _pack(
    rows: Tensor, source: int, packed: PackedFormat, shape: tuple[int, int], paired: bool
) -> Tensor:
    if paired and shape[0] % 2:
        raise ShapeError(f"A paired weight needs an even number of rows, not {shape[0]}.")
    library = load_library()
    tiles = _memory.zeros(library.packed_bytes(packed, *shape, paired))
    library.pack(source, packed, rows.data_ptr(), *shape, paired, tiles.data_ptr())
    return tiles


def _bias(bias: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if bias is None:
        return None
    if bias.shape != shape[:1]:
        raise ShapeError(f"The bias must be ({shape[0]},), not {tuple(bias.shape)}.")
    return as_float32(bias).clone()
