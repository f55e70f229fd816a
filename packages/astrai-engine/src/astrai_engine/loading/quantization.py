"""Projections in 4 and 8 bits: as a GGUF file has them, or rounded from any checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from astrai_engine.loading.gguf import half_split, hf_name, is_permuted
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.weights import Projection
from astrai_kernels.cpu.quantize import quantize_blocks
from astrai_kernels.cpu.weights import GROUP_SIZE, BlockFormat, PackedWeight, pack_blocks

Precision = Literal["none", "file", "int8", "int4"]
"""Of weights: dense, the file's own where kernels read it, or rounded to so many bits."""

ReadTensor = Callable[[str], torch.Tensor | None]
"""Gives a checkpoint's tensor by its Hugging Face name; None where there is none."""

_TARGETS = {"int8": BlockFormat.Q8_0, "int4": BlockFormat.Q4_1}


class BlockPacker:
    """Packs the blocks of a GGUF file as they are; declines what the kernels cannot read.

    Args:
        file: the open file.
        config: its configuration.
        activation_bits: of what the weights are multiplied with, 8 or 16.
    """

    def __init__(self, file: GGUFFile, config: ModelConfig, activation_bits: int) -> None:
        self._file = file
        self._config = config
        self._activation_bits = activation_bits
        self._names = {hf_name(name): name for name in file.tensors}

    def __call__(self, projection: Projection) -> PackedWeight | None:
        """See `astrai_engine.models.weights.Packer`."""
        names = [self._names.get(f"{name}.weight") for name in projection.names]
        biases = [self._names.get(f"{name}.bias") for name in projection.names]
        shapes = [(rows, projection.columns) for rows in projection.rows]
        if None in names or [self._file.shape(name) for name in names if name] != shapes:
            return None
        present = [name for name in names if name]
        kinds = {self._file.kind(name) for name in present}
        source = BlockFormat.__members__.get(kinds.pop())
        if kinds or source is None or (projection.has_bias and None in biases):
            return None
        blocks = np.concatenate([self._ordered(name, self._file.rows(name)) for name in present])
        bias = None
        if projection.has_bias:
            bias = np.concatenate(
                [self._ordered(name, self._file.read(name)) for name in biases if name]
            )
        return pack_blocks(
            torch.from_numpy(blocks),
            source,
            bias=None if bias is None else torch.from_numpy(bias),
            paired=projection.is_gate_up,
            activation_bits=self._activation_bits,
        )

    def _ordered(self, name: str, values: np.ndarray) -> np.ndarray:
        if is_permuted(self._file, name):
            return half_split(values, self._config.head_dim)
        return values


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


def gguf_tensors(file: GGUFFile, config: ModelConfig) -> ReadTensor:
    """Reads a GGUF file's tensors, dequantised and in Hugging Face's order."""
    by_name = {hf_name(name): name for name in file.tensors}

    def read(wanted: str) -> torch.Tensor | None:
        name = by_name.get(wanted)
        if name is None:
            return None
        values = file.read(name)
        if is_permuted(file, name):
            values = half_split(values, config.head_dim)
        return torch.from_numpy(values)

    return read
