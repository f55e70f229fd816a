"""Projections in 4 and 8 bits: as a GGUF file has them, or rounded from any checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from astrai_engine.loading.gguf import GGUFTensors
from astrai_engine.models.weights import Projection
from astrai_kernels.cpu.pack import pack_blocks
from astrai_kernels.cpu.quantize import quantize_blocks
from astrai_kernels.cpu.weights import GROUP_SIZE, BlockFormat, PackedWeight

Precision = Literal["none", "file", "int8", "int4"]
"""Of weights: dense, the file's own where kernels read it, or rounded to so many bits."""

ReadTensor = Callable[[str], torch.Tensor | None]
"""Gives a checkpoint's tensor by its Hugging Face name; None where there is none."""

_TARGETS = {"int8": BlockFormat.Q8_0, "int4": BlockFormat.Q4_1}


@dataclass(frozen=True, slots=True)
class BlockPacker:
    """Packs the blocks of a GGUF file as they are; declines what the kernels cannot read.

    Attributes:
        tensors: of the file.
        activation_bits: of what the weights are multiplied with, 8 or 16.
    """

    tensors: GGUFTensors
    activation_bits: int

    def __call__(self, projection: Projection) -> PackedWeight | None:
        """See `astrai_engine.models.weights.Packer`."""
        weights = [f"{name}.weight" for name in projection.names]
        shapes = [(rows, projection.columns) for rows in projection.rows]
        if [self.tensors.shape(name) for name in weights] != shapes:
            return None
        kinds = {self.tensors.kind(name) for name in weights}
        source = BlockFormat.__members__.get(kinds.pop())
        biases = [self.tensors.read(f"{n}.bias") for n in projection.names if projection.has_bias]
        if kinds or source is None or None in map(_shape, biases):
            return None
        blocks = [self.tensors.blocks(name) for name in weights]
        whole = [each for each in blocks if each is not None]
        if len(whole) < len(blocks):
            return None
        return pack_blocks(
            torch.from_numpy(np.concatenate(whole)),
            source,
            bias=torch.cat([bias for bias in biases if bias is not None]) if biases else None,
            paired=projection.is_gate_up,
            activation_bits=self.activation_bits,
        )


@dataclass(frozen=True, slots=True)
class RoundingPacker:
    """Rounds a checkpoint's projections; declines those whose rows are not whole groups of 32.

    The embedding and the head are kept in 8 bits: rounding those to 4 costs far more accuracy
    than it saves time.

    Attributes:
        read: gives tensors.
        precision: ``int8`` or ``int4``.
        activation_bits: of what the weights are multiplied with, 8 or 16.
    """

    read: ReadTensor
    precision: Precision
    activation_bits: int

    def __call__(self, projection: Projection) -> PackedWeight | None:
        """See `astrai_engine.models.weights.Packer`."""
        weights = [self.read(f"{name}.weight") for name in projection.names]
        biases = [self.read(f"{name}.bias") for name in projection.names if projection.has_bias]
        shapes = [(rows, projection.columns) for rows in projection.rows]
        if projection.columns % GROUP_SIZE or None in map(_shape, biases):
            return None
        if [_shape(weight) for weight in weights] != shapes:
            return None
        target = _TARGETS["int8" if projection.is_table else self.precision]
        present = [weight for weight in weights if weight is not None]
        return pack_blocks(
            torch.cat([quantize_blocks(weight, target) for weight in present]),
            target,
            bias=torch.cat([bias for bias in biases if bias is not None]) if biases else None,
            paired=projection.is_gate_up,
            activation_bits=self.activation_bits,
        )


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
