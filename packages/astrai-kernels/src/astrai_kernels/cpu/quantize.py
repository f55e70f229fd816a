"""Rounding dense weights to the blocks that `astrai_kernels.cpu.pack.pack_blocks` takes."""

import torch
from torch import Tensor

from astrai_kernels.cpu.weights import GROUP_SIZE, BlockFormat
from astrai_kernels.errors import ShapeError


def quantize_blocks(values: Tensor, target: BlockFormat) -> Tensor:
    """Round a weight to blocks of 32 inputs with a scale each, in GGUF's own layout.

    Args:
        values: ``[rows, in_features]`` of any float dtype; ``in_features`` a multiple of 32.
        target: ``Q8_0``, or ``Q4_1``, whose blocks have a minimum too.

    Returns:
        uint8 ``[rows, in_features / 32 * target.block_bytes]``.

    Raises:
        ShapeError: the rows are not whole blocks, or the format is another one.
    """
    if values.dim() != 2 or values.shape[1] % GROUP_SIZE:
        raise ShapeError(
            f"A weight to quantise must be [rows, a multiple of {GROUP_SIZE}], "
            f"not {tuple(values.shape)}."
        )
    groups = values.to(torch.float32).reshape(values.shape[0], -1, GROUP_SIZE)
    if target is BlockFormat.Q8_0:
        return _q8_0(groups).flatten(1)
    if target is BlockFormat.Q4_1:
        return _q4_1(groups).flatten(1)
    raise ShapeError(f"Weights can be rounded to Q8_0 and Q4_1, not to {target.name}.")


def _q8_0(groups: Tensor) -> Tensor:
    scale = _as_half(groups.abs().amax(-1, keepdim=True) / 127)
    rounded = _divide(groups, scale).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat((_bytes(scale), rounded.view(torch.uint8)), -1)


def _q4_1(groups: Tensor) -> Tensor:
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    minimum = _as_half(low)
    scale = _as_half((high - minimum) / 15)
    nibbles = _divide(groups - minimum, scale).round_().clamp_(0, 15).to(torch.uint8)
    first, second = nibbles.chunk(2, -1)
    return torch.cat((_bytes(scale), _bytes(minimum), first | second << 4), -1)


def _as_half(x: Tensor) -> Tensor:
    """What is left of ``x`` after it is stored, as float32: values are rounded to fit that."""
    return x.to(torch.float16).to(torch.float32)


def _bytes(x: Tensor) -> Tensor:
    return x.to(torch.float16).view(torch.uint8)


def _divide(x: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, x / torch.where(scale == 0, 1.0, scale))
