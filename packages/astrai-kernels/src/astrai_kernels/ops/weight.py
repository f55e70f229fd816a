"""Weights of linear layers, one type per storage format.

The format owns the code that reads it: a new one (quantised, packed for an instruction set)
subclasses `Weight`, implements `linear`, and overrides the phases it can fuse. Models call the
functions of `astrai_kernels.ops` and never look at the type.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

from astrai_kernels.ops.activation import Activation, activate
from astrai_kernels.ops.largest import likeliest
from astrai_kernels.ops.norm import rms_norm


class Weight(ABC):
    """A linear layer's weight; the phases here are the torch references."""

    @property
    @abstractmethod
    def in_features(self) -> int:
        """Elements of an input row."""

    @property
    @abstractmethod
    def out_features(self) -> int:
        """Elements of an output row."""

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""

    def norm_linear(self, x: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
        """See `astrai_kernels.ops.norm_linear`."""
        return self.linear(x if norm_weight is None else rms_norm(x, norm_weight, eps))

    def likeliest_output(
        self, x: Tensor, norm_weight: Tensor | None, eps: float
    ) -> tuple[list[float], list[int]]:
        """See `astrai_kernels.ops.likeliest_output`."""
        return likeliest(self.norm_linear(x, norm_weight, eps).float())

    def linear_residual(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `astrai_kernels.ops.linear_residual`."""
        return residual + self.linear(x)

    def linear_norm_residual(
        self, x: Tensor, norm_weight: Tensor, eps: float, residual: Tensor
    ) -> Tensor:
        """See `astrai_kernels.ops.linear_residual`, of a normalised result."""
        return residual + rms_norm(self.linear(x), norm_weight, eps)

    def norm_gate_up(
        self, x: Tensor, norm_weight: Tensor | None, eps: float, activation: Activation = "silu"
    ) -> Tensor:
        """See `astrai_kernels.ops.norm_gate_up`."""
        gate, up = self.norm_linear(x, norm_weight, eps).chunk(2, -1)
        return activate(gate, activation) * up


@dataclass(frozen=True, eq=False)
class LinearWeight(Weight):
    """A dense weight as checkpoints hold it.

    Attributes:
        weight: ``[out_features, in_features]``.
        bias: ``[out_features]``, or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    @property
    def in_features(self) -> int:
        """Elements of an input row."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Elements of an output row."""
        return self.weight.shape[0]

    def linear(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        return F.linear(x, self.weight, self.bias)

    def lookup(self, ids: Tensor) -> Tensor:
        """See `astrai_kernels.ops.embedding`."""
        return F.embedding(ids, self.weight)

    def linear_residual(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `astrai_kernels.ops.linear_residual`; one call when nothing is differentiated."""
        if self.bias is not None or torch.is_grad_enabled():
            return super().linear_residual(x, residual)
        return residual.addmm_(x, self.weight.t())
