"""Attention over the paged pool on a GPU: what the kernels serve, and their launch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.cuda import geometry
from astrai_kernels.cuda.compiler import Specialization
from astrai_kernels.cuda.launcher import Launch, loaded_kernel, num_processors
from astrai_kernels.cuda.parameters import parameter_structure
from astrai_kernels.cuda.tensors import DTYPE_NAMES, elsewhere, is_aligned, layout
from astrai_kernels.paged_rows import PagedRows

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 96, 128, 256)

# Blocks that keep a GPU busy: enough for each processor to have four at once.
_BLOCKS_PER_PROCESSOR = 4
_MAX_SPLITS = 64
_MIN_KEYS_PER_SPLIT = 128


@dataclass(frozen=True)
class AttentionOptions:
    """What attention is told besides its tensors.

    Attributes:
        scale: factor on the scores; None is ``head_dim ** -0.5``.
        window: a token sees only the last ``window`` positions; None sees all.
        softcap: scores become ``softcap * tanh(score / softcap)``; None leaves them.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None


def unsupported_shape(dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the kernels cannot serve a model, as a sentence; None when they can."""
    if dtype not in DTYPES or kv_dtype is not dtype:
        return (
            "q and the cache must both be bfloat16 or both float16, "
            f"and are {dtype} and {kv_dtype}."
        )
    if head_dim not in HEAD_DIMS:
        return f"head_dim must be one of {HEAD_DIMS}, and is {head_dim}."
    return None


def unsupported(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: PagedRows, out: Tensor | None = None
) -> str | None:
    """Why the kernels cannot serve these tensors, as a sentence; None when they can.

    Args:
        q: see `run_decode`.
        k_pool: alike.
        v_pool: alike.
        rows: alike.
        out: alike; None where it will be made like q.
    """
    reason = unsupported_shape(q.dtype, k_pool.dtype, q.shape[-1])
    if reason is not None:
        return reason
    if not all(each is None or is_aligned(each) for each in (q, k_pool, v_pool, out)):
        return (
            "the heads of q, the cache and the result must be contiguous and begin at multiples "
            "of 16 bytes."
        )
    if v_pool.dtype is not k_pool.dtype or k_pool.stride() != v_pool.stride():
        return "the keys and the values of the cache must lie alike in memory."
    return elsewhere(q, k_pool, v_pool, out) or _unsupported_rows(rows, q)


def _unsupported_rows(rows: PagedRows, q: Tensor) -> str | None:
    expected = (
        ("req_to_token", rows.req_to_token, torch.int32),
        ("req_pool_indices", rows.req_pool_indices, torch.int64),
        ("seq_lens", rows.seq_lens, torch.int64),
        ("qo_indptr", rows.qo_indptr, torch.int32),
    )
    for name, tensor, dtype in expected:
        if tensor is not None and (tensor.dtype is not dtype or tensor.stride(-1) != 1):
            return f"{name} must be contiguous and of {dtype}, and is of {tensor.dtype}."
    return elsewhere(q, *(tensor for _, tensor, _ in expected))


def decode_launch(dtype: torch.dtype, head_dim: int, group: int) -> Launch:
    """The kernel for rows of one query token."""
    block = geometry.decode_block(head_dim, group)
    return Launch(_specialization("decode", dtype, head_dim, group), block)


def prefill_launch(dtype: torch.dtype, head_dim: int, group: int) -> Launch:
    """The kernel for rows of several query tokens."""
    block = geometry.prefill_block(head_dim)
    return Launch(_specialization("prefill", dtype, head_dim, group), block)


def _specialization(name: str, dtype: torch.dtype, head_dim: int, group: int) -> Specialization:
    short = DTYPE_NAMES[dtype]
    return Specialization(
        f"{name}_{short}_{head_dim}_{group}",
        (
            ("ASTRAI_KERNEL", f"ASTRAI_{name.upper()}"),
            ("ASTRAI_DTYPE", f"astrai::{short}"),
            ("ASTRAI_HEAD_DIM", str(head_dim)),
            ("ASTRAI_GROUP", str(group)),
        ),
    )


def counters_shape(batch: int, num_kv_heads: int, group: int) -> tuple[int, int]:
    """Of the int32 counters that `run_decode` needs."""
    grid = geometry.decode_grid(num_kv_heads, group, batch, 1)
    return batch, grid[0]


def run_decode(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: PagedRows,
    options: AttentionOptions,
    out: Tensor,
    counters: Tensor | None = None,
) -> None:
    """Attend the rows that have exactly one query token; the others' tokens are left alone.

    Args:
        q: ``[tokens, n_heads, head_dim]``.
        k_pool: ``[slots, n_kv_heads, head_dim]``.
        v_pool: alike.
        rows: the step's rows.
        options: see there.
        out: gets ``[tokens, n_heads, head_dim]``.
        counters: at least `counters_shape` of int32 zeros, which they are again when the kernel is
            done; two launches that may overlap must not share them. None makes some.

    Raises:
        CudaUnavailableError: the kernel cannot be compiled or loaded.
        KernelLaunchError: the driver refuses.
    """
    (_, heads, head_dim), kv_heads = q.shape, k_pool.shape[1]
    group = heads // kv_heads
    kernel = loaded_kernel(decode_launch(q.dtype, head_dim, group), q.get_device())
    shape = counters_shape(rows.batch, kv_heads, group)
    splits = _num_splits(shape[0] * shape[1], rows.max_len, q.get_device())
    partials: tuple[Tensor | None, Tensor | None] = (None, None)
    if splits > 1:
        scratch = (rows.batch, heads, splits)
        partials = (
            q.new_empty(*scratch, head_dim, dtype=torch.float32),
            q.new_empty(*scratch, 2, dtype=torch.float32),
        )
        if counters is None:
            counters = q.new_zeros(shape, dtype=torch.int32)
    kernel.run(
        geometry.decode_grid(kv_heads, group, rows.batch, splits),
        parameter_structure("DecodeParams")(
            **_fields(q, k_pool, v_pool, rows, options, out),
            partial_out=_address(partials[0]),
            partial_stats=_address(partials[1]),
            counters=_address(counters),
            num_kv_heads=kv_heads,
            num_splits=splits,
        ),
    )


def run_prefill(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: PagedRows,
    options: AttentionOptions,
    out: Tensor,
    min_q_len: int = 1,
) -> None:
    """Attend the rows of at least ``min_q_len`` query tokens; see `run_decode`."""
    (tokens, heads, head_dim), kv_heads = q.shape, k_pool.shape[1]
    group = heads // kv_heads
    kernel = loaded_kernel(prefill_launch(q.dtype, head_dim, group), q.get_device())
    kernel.run(
        geometry.prefill_grid(kv_heads, group, head_dim, tokens, rows.batch),
        parameter_structure("PrefillParams")(
            **_fields(q, k_pool, v_pool, rows, options, out),
            batch=rows.batch,
            q_len=0 if rows.qo_indptr is not None else tokens // rows.batch,
            min_q_len=min_q_len,
        ),
    )


def _fields(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: PagedRows,
    options: AttentionOptions,
    out: Tensor,
) -> dict[str, int | float | None]:
    """What both kernels are told."""
    return {
        "q": q.data_ptr(),
        "k": k_pool.data_ptr(),
        "v": v_pool.data_ptr(),
        "out": out.data_ptr(),
        "req_to_token": rows.req_to_token.data_ptr(),
        "req_pool_indices": rows.req_pool_indices.data_ptr(),
        "seq_lens": rows.seq_lens.data_ptr(),
        "qo_indptr": _address(rows.qo_indptr),
        "table_stride": rows.req_to_token.stride(0),
        **layout(q=q, out=out, pool=k_pool),
        "window": min(options.window or 0, rows.max_len),  # fits in 32 bits, whatever was asked
        "scale": q.shape[-1] ** -0.5 if options.scale is None else options.scale,
        "soft_cap": options.softcap or 0.0,
    }


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _num_splits(blocks: int, max_len: int, device: int) -> int:
    """Blocks that share out a row's keys, chosen without knowing how long the rows are."""
    wanted = _BLOCKS_PER_PROCESSOR * num_processors(device) // max(blocks, 1)
    return max(1, min(wanted, max_len // _MIN_KEYS_PER_SPLIT, _MAX_SPLITS))
