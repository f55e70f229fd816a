"""Root-mean-square normalisation."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension to unit root mean square and scale it.

    The mean is taken in float32 and the result rounded to ``x``'s dtype before it is scaled, as
    Llama checkpoints were trained; with a float32 weight after it is scaled, as Gemma's were.

    Args:
        x: ``[..., dim]``.
        weight: ``[dim]``.
        eps: added to the mean square.

    Returns:
        ``[..., dim]`` of ``x``'s dtype.
    """
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    if weight.dtype is torch.float32:
        return (weight * (wide * scale)).to(x.dtype)
    return weight * (wide * scale).to(x.dtype)
