"""Attention over a paged pool of K/V, as ops: CUDA kernels on GPUs, torch on CPUs.

Both need no number from the device, so a CUDA graph can hold them. No gradient is recorded.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from astrai_kernels.cuda import attention
from astrai_kernels.cuda.attention import AttentionOptions, counters_shape
from astrai_kernels.errors import ShapeError
from astrai_kernels.ops.library import register, require
from astrai_kernels.ops.tiles import tile_queries
from astrai_kernels.paged_rows import PagedRows

_SHARED_ARGUMENTS = (
    "Tensor q, Tensor k_pool, Tensor v_pool, Tensor req_to_token, Tensor req_pool_indices, "
    "Tensor seq_lens, int max_len, float? scale, int? window, float? softcap, Tensor(a!) out"
)


def attn_paged_decode(  # noqa: PLR0913 - the kernel's inputs
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    *,
    max_len: int,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
    counters: Tensor | None = None,
) -> Tensor:
    """Attend one query token per row, each over the slots that its row of the table names.

    Args:
        q: ``[batch, n_heads, head_dim]``; ``n_heads`` is a multiple of ``n_kv_heads``.
        k_pool: ``[slots, n_kv_heads, head_dim]``, the keys of one layer.
        v_pool: alike.
        req_to_token: ``[requests, positions]`` int32: the slot of each position.
        req_pool_indices: ``[batch]`` int64: each row's row in ``req_to_token``.
        seq_lens: ``[batch]`` int64: positions that each row attends; 0 gives zeros.
        max_len: at least the largest of ``seq_lens``.
        scale: factor on the scores; None is ``head_dim ** -0.5``.
        window: a token sees the last ``window`` positions only; None sees all.
        softcap: scores become ``softcap * tanh(score / softcap)``; None leaves them.
        out: gets the result; None allocates it.
        counters: at least `astrai_kernels.cuda.attention.counters_shape` of int32 zeros for a
            GPU's scratch, zeros again afterwards; None allocates them in each call.

    Returns:
        ``[batch, n_heads, head_dim]`` of q's dtype.

    Raises:
        ShapeError: the tensors do not fit together.
        CudaUnavailableError: they are on a GPU, and no kernel can serve them.
    """
    rows = PagedRows(req_to_token, req_pool_indices, seq_lens, None, max_len)
    _check(q, k_pool, v_pool, rows, window, out)
    if q.shape[0] != rows.batch:
        raise ShapeError(f"q must have one token for each of {rows.batch} rows, not {q.shape[0]}.")
    if counters is not None:
        _check_counters(counters, rows.batch, q, k_pool)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    tensors = (q, k_pool, v_pool, req_to_token, req_pool_indices, seq_lens)
    _decode(*tensors, max_len, scale, window, softcap, out, counters)
    return out


def attn_paged_prefill(  # noqa: PLR0913 - the kernel's inputs
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    qo_indptr: Tensor | None,
    *,
    max_len: int,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend rows of any number of query tokens, which are the last of each row's positions.

    A token sees the positions up to its own.

    Args:
        q: ``[tokens, n_heads, head_dim]``, row after row.
        k_pool: see `attn_paged_decode`.
        v_pool: alike.
        req_to_token: alike.
        req_pool_indices: alike.
        seq_lens: alike; a row's query tokens are counted in.
        qo_indptr: ``[batch + 1]`` int32: prefix sums of the rows' query tokens; None if all rows
            have equally many.
        max_len: alike.
        scale: alike.
        window: alike.
        softcap: alike.
        out: alike.

    Returns:
        ``[tokens, n_heads, head_dim]`` of q's dtype.

    Raises:
        ShapeError: the tensors do not fit together.
        CudaUnavailableError: they are on a GPU, and no kernel can serve them.
    """
    rows = PagedRows(req_to_token, req_pool_indices, seq_lens, qo_indptr, max_len)
    _check(q, k_pool, v_pool, rows, window, out)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    tensors = (q, k_pool, v_pool, req_to_token, req_pool_indices, seq_lens)
    _prefill(*tensors, max_len, scale, window, softcap, out, qo_indptr)
    return out


def _check(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: PagedRows,
    window: int | None,
    out: Tensor | None,
) -> None:
    if q.dim() != 3 or k_pool.dim() != 3 or k_pool.shape != v_pool.shape:
        raise ShapeError(
            "q must be [tokens, n_heads, head_dim], the pools [slots, n_kv_heads, head_dim]; "
            f"they are {tuple(q.shape)}, {tuple(k_pool.shape)} and {tuple(v_pool.shape)}."
        )
    if q.shape[2] != k_pool.shape[2] or q.shape[1] % k_pool.shape[1]:
        raise ShapeError(
            "q and the pools must have the same head_dim, and n_heads must be a multiple of "
            f"n_kv_heads; they are {tuple(q.shape)} and {tuple(k_pool.shape)}."
        )
    if out is not None and (out.shape != q.shape or out.dtype is not q.dtype):
        raise ShapeError(
            f"out must be {tuple(q.shape)} of {q.dtype}, not {tuple(out.shape)} of {out.dtype}."
        )
    if window is not None and window < 1:
        raise ShapeError(f"A window must be at least 1 token, or None, not {window}.")
    rows.check(q.shape[0])


def _check_counters(counters: Tensor, batch: int, q: Tensor, k_pool: Tensor) -> None:
    shape = counters_shape(batch, k_pool.shape[1], q.shape[1] // k_pool.shape[1])
    fits = counters.dtype is torch.int32 and counters.is_contiguous()
    if not fits or counters.numel() < math.prod(shape) or counters.device != q.device:
        raise ShapeError(
            f"counters must be contiguous int32 of shape {shape} on {q.device}, not "
            f"{tuple(counters.shape)} of {counters.dtype} on {counters.device}."
        )


_Call = tuple[Tensor, Tensor, Tensor, PagedRows, AttentionOptions, Tensor]


def _understand(arguments: Sequence[Any], qo_indptr: Tensor | None) -> _Call:
    """The arguments that both ops begin with, in their parts."""
    q, k_pool, v_pool, table, indices, seq_lens, max_len, scale, window, softcap, out = arguments
    rows = PagedRows(table, indices, seq_lens, qo_indptr, max_len)
    return q, k_pool, v_pool, rows, AttentionOptions(scale, window, softcap), out


def _in_torch(call: _Call) -> None:
    q, k_pool, v_pool, rows, options, out = call
    if len(q):
        tiles = tile_queries(rows, len(q), options.window)
        out.copy_(tiles.attend(q, k_pool, v_pool, options.scale, options.softcap))


def _decode_in_torch(*arguments: Any) -> None:
    _in_torch(_understand(arguments[:-1], None))


def _decode_on_gpu(*arguments: Any) -> None:
    call = _understand(arguments[:-1], None)
    require(attention.unsupported(*call[:4], call[-1]))
    attention.run_decode(*call, counters=arguments[-1])


def _prefill_in_torch(*arguments: Any) -> None:
    _in_torch(_understand(arguments[:-1], arguments[-1]))


def _prefill_on_gpu(*arguments: Any) -> None:
    call = _understand(arguments[:-1], arguments[-1])
    require(attention.unsupported(*call[:4], call[-1]))
    attention.run_prefill(*call)


def _nothing(*arguments: Any) -> None:
    """What an op that only fills its ``out`` gives to tracing."""
    del arguments


_decode = register(
    f"attn_paged_decode({_SHARED_ARGUMENTS}, Tensor(b!)? counters) -> ()",
    cpu=_decode_in_torch,
    cuda=_decode_on_gpu,
    fake=_nothing,
)
_prefill = register(
    f"attn_paged_prefill({_SHARED_ARGUMENTS}, Tensor? qo_indptr) -> ()",
    cpu=_prefill_in_torch,
    cuda=_prefill_on_gpu,
    fake=_nothing,
)
