"""What backends do with the inputs of a call before they compute."""

import weakref
from collections.abc import Callable

from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.errors import ShapeError
from astrai_kernels.paged_rows import PagedRows


def weakly(cache: AttentionCache) -> Callable[[], AttentionCache | None]:
    """A reference that does not keep a pool's memory alive, for types that allow it."""
    try:
        return weakref.ref(cache)
    except TypeError:
        return lambda: cache


def check_shapes(
    q: Tensor, k: Tensor, v: Tensor, cache: AttentionCache, window: int | None
) -> None:
    """Raise `ShapeError` where q, k, v, the cache and the window do not fit together."""
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape:
        raise ShapeError(
            "q must be [tokens, n_heads, head_dim], k and v [tokens, n_kv_heads, head_dim]; "
            f"they are {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    if q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise ShapeError(
            "q and k must have the same tokens and head_dim, and n_heads must be a multiple of "
            f"n_kv_heads; they are {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if cache.k_buffer.shape[2:] != k.shape[1:]:
        raise ShapeError(
            f"The cache holds [n_kv_heads, head_dim] = {tuple(cache.k_buffer.shape[2:])}, "
            f"but k has {tuple(k.shape[1:])}."
        )
    if window is not None and window < 1:
        raise ShapeError(f"A window must be at least 1 token, or None, not {window}.")


def check_num_slots(slots: Tensor, num_tokens: int) -> None:
    """Raise `ShapeError` where a step does not have one slot for each of its tokens."""
    if slots.numel() != num_tokens:
        raise ShapeError(
            f"out_cache_loc must have one slot for each of {num_tokens} tokens, "
            f"not {slots.numel()}."
        )


def paged_rows(cache: AttentionCache) -> PagedRows:
    """The rows of a step."""
    return PagedRows(
        cache.req_to_token,
        cache.req_pool_indices,
        cache.seq_lens,
        cache.qo_indptr,
        cache.max_len,
    )
