"""Rotary position embedding: the table of angles and the rotation.

Tables are ``[..., dim/2, 2]`` float32: cosine and sine of each pair's angle. Two layouts of the
rotated pairs exist: interleaved (elements 2i and 2i+1) and half-split (elements i and i + dim/2),
which is what Hugging Face checkpoints hold.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from astrai_kernels.cuda.launcher import unavailable_reason
from astrai_kernels.cuda.rotary import unsupported
from astrai_kernels.errors import (
    BackendFallbackWarning,
    CudaUnavailableError,
    PositionError,
    ShapeError,
)
from astrai_kernels.ops.rotary_emb import rotary_emb


class RotaryEmbedding(nn.Module):
    """A table of rotation angles for every position up to ``max_len``.

    Angles are computed in float32 exactly as Hugging Face does, since checkpoints were trained
    with that rounding. The table stays float32 whatever the module is cast to, and follows the
    device of the positions asked for.

    Args:
        dim: elements of a head that are rotated; even.
        max_len: number of positions.
        base: wavelength base of the default frequencies.
        inv_freq: ``[dim/2]`` frequencies that replace the default ones (scaled RoPE variants).
        attention_scaling: factor on cosine and sine (YaRN's attention temperature).

    Attributes:
        freqs_cis: ``[max_len, dim/2, 2]`` float32.

    Raises:
        ShapeError: ``dim`` is odd, or ``inv_freq`` does not have ``dim/2`` elements.
    """

    def __init__(
        self,
        dim: int,
        max_len: int,
        base: float = 10000.0,
        *,
        inv_freq: Tensor | None = None,
        attention_scaling: float = 1.0,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ShapeError(f"A rotary dimension must be even, not {dim}.")
        if inv_freq is None:
            inv_freq = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        if inv_freq.shape != (dim // 2,):
            raise ShapeError(
                f"inv_freq must have shape ({dim // 2},), half of dim {dim}, "
                f"not {tuple(inv_freq.shape)}."
            )
        positions = torch.arange(max_len, dtype=torch.float32, device=inv_freq.device)
        angles = torch.outer(positions, inv_freq.to(torch.float32))
        # A plain attribute, not a buffer: `model.to(bfloat16)` must not round the table.
        self.freqs_cis = torch.stack((angles.cos(), angles.sin()), dim=-1) * attention_scaling

    def forward(self, position_ids: Tensor) -> Tensor:
        """Look up the angles of positions.

        Args:
            position_ids: integer positions of any shape.

        Returns:
            ``[*position_ids.shape, dim/2, 2]`` float32.

        Raises:
            PositionError: a position is negative or not below ``max_len``. Checked on the CPU
                only: on other devices the check would stall the device.
        """
        if self.freqs_cis.device != position_ids.device:
            self.freqs_cis = self.freqs_cis.to(position_ids.device)
        if position_ids.is_cpu and position_ids.dim() == 1:
            return self._rows(position_ids)
        self._check_range(position_ids)
        return self.freqs_cis[position_ids]

    def _rows(self, position_ids: Tensor) -> Tensor:
        """The same for a step's tokens on the CPU, where ``index_select`` looks at the range."""
        try:
            return self.freqs_cis.index_select(0, position_ids)
        except (IndexError, RuntimeError):
            self._check_range(position_ids)
            raise

    def _check_range(self, position_ids: Tensor) -> None:
        if not position_ids.is_cpu or position_ids.numel() == 0:
            return
        low, high = (int(bound) for bound in torch.aminmax(position_ids))
        max_len = self.freqs_cis.shape[0]
        if low < 0 or high >= max_len:
            raise PositionError(
                f"Positions {low} to {high} do not fit the rotary table of {max_len} positions; "
                "build RotaryEmbedding with a larger max_len."
            )


@dataclass(frozen=True, eq=False)
class Rotary:
    """The angles of one step's tokens, gathered once and applied in every layer.

    A head may have more elements than are rotated: those behind the first ``dim`` stay as they are.

    Attributes:
        freqs_cis: ``[tokens, dim/2, 2]`` float32 (any leading shape).
        interleaved: pairs are neighbours; else they are half a head apart.
    """

    freqs_cis: Tensor
    interleaved: bool

    @property
    def dim(self) -> int:
        """Elements of a head that are rotated."""
        return 2 * self.freqs_cis.shape[-2]

    def apply(self, x: Tensor) -> Tensor:
        """Rotate ``x`` of shape ``[..., heads, head_dim]``; see `apply_rotary_emb`."""
        self.check_shape(x.shape)
        if x.is_cuda and not (torch.is_grad_enabled() and x.requires_grad):
            by_kernel = _rotate_by_kernel(x, self.freqs_cis, self.interleaved)
            if by_kernel is not None:
                return by_kernel
        if x.shape[-1] > self.dim:
            return torch.cat((self.apply(x[..., : self.dim]), x[..., self.dim :]), -1)
        rotated = self._rotate_pairs(x) if self.interleaved else self._rotate_halves(x)
        return rotated.to(x.dtype)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise `ShapeError` if no ``[..., heads, head_dim]`` of that shape can be rotated."""
        if tuple(shape[:-2]) != self.freqs_cis.shape[:-2] or shape[-1] < self.dim:
            raise ShapeError(
                f"Cannot rotate x of shape {tuple(shape)}, read as [..., heads, head_dim], by "
                f"angles of shape {tuple(self.freqs_cis.shape)}, read as [..., dim/2, 2]."
            )

    @cached_property
    def _complex(self) -> Tensor:
        return torch.view_as_complex(self.freqs_cis.contiguous()).unsqueeze(-2)

    @cached_property
    def _full_width(self) -> tuple[Tensor, Tensor]:
        """Cosines, and sines signed for swapped halves, as ``[..., 1, dim]``."""
        cos, sin = self.freqs_cis.unbind(-1)
        return torch.cat((cos, cos), -1).unsqueeze(-2), torch.cat((-sin, sin), -1).unsqueeze(-2)

    def _rotate_pairs(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.to(torch.float32).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self._complex).flatten(-2)

    def _rotate_halves(self, x: Tensor) -> Tensor:
        cos, sin = self._full_width
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _rotate_by_kernel(x: Tensor, freqs_cis: Tensor, interleaved: bool) -> Tensor | None:
    """What the CUDA kernel gives; None where it cannot serve."""
    heads, angles = x.flatten(0, -3), freqs_cis.flatten(0, -3)
    if unavailable_reason(x.device) or unsupported(heads, angles):
        return None
    try:
        return rotary_emb(heads, angles, interleaved=interleaved).view(x.shape)
    except CudaUnavailableError as error:
        _report(str(error))
        return None


@cache
def _report(reason: str) -> None:
    """Warn of a kernel that ought to serve and cannot; once for each reason."""
    warnings.warn(f"Rotation falls back to torch: {reason}", BackendFallbackWarning, stacklevel=4)


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor, *, interleaved: bool = True) -> Tensor:
    """Rotate each head of ``x`` by its token's angles; differentiable.

    A CUDA kernel does it where one can serve and no gradient is recorded, else torch.

    Args:
        x: ``[..., heads, head_dim]``; only the first ``dim`` elements are rotated.
        freqs_cis: ``[..., dim/2, 2]`` float32 with the leading shape of ``x``, as
            `RotaryEmbedding` gives it; ``dim`` is at most ``head_dim``.
        interleaved: pairs are neighbours (complex numbers); False for pairs half a head apart.

    Returns:
        The rotated tensor, of ``x``'s shape and dtype; computed in float32.

    Raises:
        ShapeError: the shapes do not fit.
    """
    return Rotary(freqs_cis, interleaved).apply(x)
