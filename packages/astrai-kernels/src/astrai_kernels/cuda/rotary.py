"""Rotation, fused with the write to the pool, on a GPU: what the kernel serves, and its launch."""

import torch
from torch import Tensor

from astrai_kernels.cuda import geometry
from astrai_kernels.cuda.compiler import Specialization
from astrai_kernels.cuda.launcher import Launch, loaded_kernel
from astrai_kernels.cuda.parameters import parameter_structure
from astrai_kernels.cuda.tensors import DTYPE_NAMES, elsewhere, is_aligned, layout

_GROUP_BYTES = 32
"""A head is cut into pieces of this size."""


def unsupported(x: Tensor, freqs_cis: Tensor | None) -> str | None:
    """Why the kernel cannot serve heads and angles like these; None when it can.

    Args:
        x: ``[tokens, heads, head_dim]``.
        freqs_cis: ``[tokens, dim / 2, 2]``, or None.
    """
    if x.dtype not in DTYPE_NAMES:
        return f"heads must be bfloat16, float16 or float32, and are {x.dtype}."
    multiple = _GROUP_BYTES // x.itemsize
    rotated = 0 if freqs_cis is None else 2 * freqs_cis.shape[-2]
    if x.shape[-1] % multiple or rotated % multiple:
        return f"head_dim must be a multiple of {multiple}, and is {x.shape[-1]}."
    if not is_aligned(x):
        return "heads must be contiguous and begin at multiples of 16 bytes."
    if freqs_cis is None:
        return None
    if freqs_cis.dtype is not torch.float32 or not freqs_cis[:1].is_contiguous():
        return f"a token's angles must be contiguous and float32, and are {freqs_cis.dtype}."
    if not is_aligned(freqs_cis.flatten(-2)):
        return "a token's angles must begin at a multiple of 16 bytes."
    return elsewhere(x, freqs_cis)


def unsupported_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs_cis: Tensor | None,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> str | None:
    """Why the kernel cannot serve such a call of `run_rotary_store`; None when it can."""
    if any(x.dtype is not q.dtype for x in (k, v, k_pool, v_pool)):
        return f"q and the cache must be of one dtype, and are {q.dtype} and {k_pool.dtype}."
    if not (is_aligned(k_pool) and is_aligned(v_pool)) or k_pool.stride() != v_pool.stride():
        return "the cache's heads must begin at multiples of 16 bytes, keys as values."
    if slots.dtype is not torch.int64 or not slots.is_contiguous():
        return f"the slots must be contiguous and torch.int64, and are {slots.dtype}."
    reason = unsupported(q, freqs_cis) or unsupported(k, freqs_cis) or unsupported(v, None)
    return reason or elsewhere(q, k, v, slots, k_pool, v_pool)


def rotary_launch(dtype: torch.dtype, head_dim: int) -> Launch:
    """The kernel for heads of a dtype and size."""
    short = DTYPE_NAMES[dtype]
    specialization = Specialization(
        f"rotary_{short}_{head_dim}",
        (
            ("ASTRAI_KERNEL", "ASTRAI_ROTARY"),
            ("ASTRAI_DTYPE", f"astrai::{short}"),
            ("ASTRAI_HEAD_DIM", str(head_dim)),
        ),
    )
    return Launch(specialization, geometry.rotary_block())


def run_rotary(x: Tensor, freqs_cis: Tensor, out: Tensor, *, interleaved: bool) -> None:
    """Rotate heads.

    Args:
        x: ``[tokens, heads, head_dim]``.
        freqs_cis: ``[tokens, rotary_dim / 2, 2]`` float32.
        out: gets the rotated heads.
        interleaved: pairs are neighbours; else half a rotary_dim apart.

    Raises:
        CudaUnavailableError: the kernel cannot be compiled or loaded.
        KernelLaunchError: the driver refuses.
    """
    kernel = loaded_kernel(rotary_launch(x.dtype, x.shape[-1]), x.get_device())
    kernel.run(
        (x.shape[0], 1, 1),
        parameter_structure("RotaryParams")(
            q=x.data_ptr(),
            q_out=out.data_ptr(),
            num_q_heads=x.shape[1],
            **layout(q=x, q_out=out),
            **_angles(freqs_cis, interleaved),
        ),
    )


def run_rotary_store(  # noqa: PLR0913 - the kernel's inputs
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs_cis: Tensor | None,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    q_out: Tensor | None,
    *,
    interleaved: bool,
) -> None:
    """Rotate q and k, and write k and v where ``slots`` says, in one launch.

    Args:
        q: ``[tokens, heads, head_dim]``.
        k: ``[tokens, kv_heads, head_dim]``.
        v: alike.
        freqs_cis: ``[tokens, rotary_dim / 2, 2]`` float32; None rotates nothing.
        slots: ``[tokens]`` int64; negative ones are not written.
        k_pool: ``[slots, kv_heads, head_dim]``.
        v_pool: alike.
        q_out: gets the rotated q; None leaves q alone.
        interleaved: pairs are neighbours; else half a rotary_dim apart.

    Raises:
        CudaUnavailableError: the kernel cannot be compiled or loaded.
        KernelLaunchError: the driver refuses.
    """
    kernel = loaded_kernel(rotary_launch(q.dtype, q.shape[-1]), q.get_device())
    queries: dict[str, int] = {}
    if q_out is not None:
        queries = {"q": q.data_ptr(), "q_out": q_out.data_ptr(), "num_q_heads": q.shape[1]}
        queries |= layout(q=q, q_out=q_out)
    kernel.run(
        (q.shape[0], 1, 1),
        parameter_structure("RotaryParams")(
            **queries,
            k=k.data_ptr(),
            v=v.data_ptr(),
            k_out=k_pool.data_ptr(),
            v_out=v_pool.data_ptr(),
            slots=slots.data_ptr(),
            num_kv_heads=k.shape[1],
            **layout(k=k, v=v, out=k_pool),
            **({} if freqs_cis is None else _angles(freqs_cis, interleaved)),
        ),
    )


def _angles(freqs_cis: Tensor, interleaved: bool) -> dict[str, int]:
    return {
        "table": freqs_cis.data_ptr(),
        "table_stride": freqs_cis.stride(0),
        "rotary_dim": 2 * freqs_cis.shape[1],
        "interleaved": int(interleaved),
    }
