"""Rotary embedding as ops: CUDA kernels on GPUs, torch on CPUs. No gradient is recorded.

`astrai_kernels.apply_rotary_emb` is the function for everybody: it is differentiable, serves every
dtype, and uses the kernel where that can.
"""

from typing import Any

import torch
from torch import Tensor

from astrai_kernels.cuda import rotary
from astrai_kernels.errors import ShapeError
from astrai_kernels.ops.library import register, require
from astrai_kernels.ops.slots import plan_writes


def rotary_emb(x: Tensor, freqs_cis: Tensor, *, interleaved: bool = True) -> Tensor:
    """Rotate each head by its token's angles.

    Args:
        x: ``[tokens, heads, head_dim]``.
        freqs_cis: ``[tokens, dim / 2, 2]`` float32: cosine and sine. The first ``dim`` elements
            of a head are rotated, the others stay.
        interleaved: pairs are neighbours; else half a head apart.

    Returns:
        The rotated heads, contiguous; computed in float32.

    Raises:
        ShapeError: the shapes do not fit.
        CudaUnavailableError: the tensors are on a GPU, and no kernel can serve them.
    """
    _check_angles(x, freqs_cis)
    rotated: Tensor = _rotate(x, freqs_cis, interleaved)
    return rotated


def rotary_emb_store(  # noqa: PLR0913 - the kernel's inputs
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs_cis: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    *,
    interleaved: bool = True,
) -> Tensor:
    """Rotate q and k, and write k and v to their token slots: one launch on a GPU.

    Args:
        q: ``[tokens, heads, head_dim]``.
        k: ``[tokens, kv_heads, head_dim]``.
        v: alike.
        freqs_cis: see `rotary_emb`.
        slots: ``[tokens]`` int64: rows of the pools; negative ones are not written.
        k_pool: ``[slots, kv_heads, head_dim]``, changed in place.
        v_pool: alike.
        interleaved: see `rotary_emb`.

    Returns:
        The rotated q, contiguous.

    Raises:
        ShapeError: the shapes do not fit.
        CudaUnavailableError: the tensors are on a GPU, and no kernel can serve them.
    """
    _check_angles(q, freqs_cis)
    _check_angles(k, freqs_cis)
    if k.shape != v.shape or slots.shape != k.shape[:1] or k_pool.shape[1:] != k.shape[1:]:
        raise ShapeError(
            f"k, v, slots and the pools do not fit together: {tuple(k.shape)}, {tuple(v.shape)}, "
            f"{tuple(slots.shape)} and {tuple(k_pool.shape)}."
        )
    if k_pool.shape != v_pool.shape:
        raise ShapeError(
            f"The pools must be alike, not {tuple(k_pool.shape)} and {tuple(v_pool.shape)}."
        )
    rotated: Tensor = _store(q, k, v, freqs_cis, slots, k_pool, v_pool, interleaved)
    return rotated


def _check_angles(x: Tensor, freqs_cis: Tensor) -> None:
    fits = (
        x.dim() == freqs_cis.dim() == 3
        and freqs_cis.shape[::2] == (x.shape[0], 2)
        and 2 * freqs_cis.shape[1] <= x.shape[2]
    )
    if not fits:
        raise ShapeError(
            "x must be [tokens, heads, head_dim] and the angles [tokens, dim / 2, 2] with dim at "
            f"most head_dim, not {tuple(x.shape)} and {tuple(freqs_cis.shape)}."
        )


def _rotate_in_torch(x: Tensor, freqs_cis: Tensor, interleaved: bool) -> Tensor:
    dim = 2 * freqs_cis.shape[1]
    if dim < x.shape[-1]:
        return torch.cat((_rotate_in_torch(x[..., :dim], freqs_cis, interleaved), x[..., dim:]), -1)
    cos, sin = freqs_cis.to(torch.float32).unsqueeze(-3).unbind(-1)
    wide = x.to(torch.float32)
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return rotated.to(x.dtype)


def _rotate_on_gpu(x: Tensor, freqs_cis: Tensor, interleaved: bool) -> Tensor:
    require(rotary.unsupported(x, freqs_cis))
    out = _like(x)
    rotary.run_rotary(x, freqs_cis, out, interleaved=interleaved)
    return out


def _store_in_torch(  # noqa: PLR0913 - the op's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs_cis: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    interleaved: bool,
) -> Tensor:
    if len(q):
        writes = plan_writes(slots)
        writes.store(k_pool, _rotate_in_torch(k, freqs_cis, interleaved))
        writes.store(v_pool, v)
    return _rotate_in_torch(q, freqs_cis, interleaved)


def _store_on_gpu(  # noqa: PLR0913 - the op's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs_cis: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    interleaved: bool,
) -> Tensor:
    require(rotary.unsupported_store(q, k, v, freqs_cis, slots, k_pool, v_pool))
    out = _like(q)
    rotary.run_rotary_store(q, k, v, freqs_cis, slots, k_pool, v_pool, out, interleaved=interleaved)
    return out


def _like(x: Tensor, *others: Any) -> Tensor:
    """Room for a rotated ``x``."""
    del others
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_rotate = register(
    "rotary_emb(Tensor x, Tensor freqs_cis, bool interleaved) -> Tensor",
    cpu=_rotate_in_torch,
    cuda=_rotate_on_gpu,
    fake=_like,
)
_store = register(
    "rotary_emb_store(Tensor q, Tensor k, Tensor v, Tensor freqs_cis, Tensor slots, "
    "Tensor(a!) k_pool, Tensor(b!) v_pool, bool interleaved) -> Tensor",
    cpu=_store_in_torch,
    cuda=_store_on_gpu,
    fake=_like,
)
