"""One step's inputs, checked once and laid out for the native attention kernel."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.backends.inputs import check_num_slots, check_shapes
from astrai_kernels.backends.rows import check_lengths, query_bounds
from astrai_kernels.cpu.library import AttentionStruct, load_library
from astrai_kernels.errors import ShapeError
from astrai_kernels.rotary import Rotary

_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_LANES = 8


def unsupported(q: Tensor, k: Tensor, v: Tensor, cache: AttentionCache) -> str | None:
    """Why the kernels cannot serve these tensors, as a sentence; None when they can."""
    if q.dtype not in _TYPES or k.dtype is not q.dtype or v.dtype is not q.dtype:
        return f"q, k and v must all be float32, float16 or bfloat16, and q is {q.dtype}."
    keys, values = cache.k_buffer, cache.v_buffer
    if keys.dtype not in _TYPES or values.dtype is not keys.dtype:
        return f"its cache must be float32, float16 or bfloat16, and is {keys.dtype}."
    if not keys.is_cpu or not values.is_cpu:
        return f"its cache must be on the CPU, and is on {keys.device}."
    if q.shape[-1] % _LANES:
        return f"head_dim must be a multiple of {_LANES}, and is {q.shape[-1]}."
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        return "the elements of a head in the cache must be consecutive."
    return None


class StepKey(NamedTuple):
    """What two calls of a step share when its first one's preparation serves the second."""

    q_shape: torch.Size
    k_shape: torch.Size
    v_shape: torch.Size
    dtype: torch.dtype
    rotary: int
    window: int | None

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary | None, window: int | None
    ) -> "StepKey":
        """The key of a call."""
        return cls(q.shape, k.shape, v.shape, q.dtype, id(rotary), window)


class NativeStep:
    """What the layers of a step share.

    Args:
        q: of the first call; see `AttentionBackend.attend`.
        k: alike.
        v: alike.
        cache: the step's cache; its index tensors are read on the host.
        rotary: the step's angles, or None.
        window: sliding window in tokens, or None.

    Attributes:
        has_idle_tokens: some tokens belong to no attended row: their output is zero.
        layer_bytes: from one layer's keys to the next one's, and from values to values.

    Raises:
        ShapeError: the tensors do not fit together, or name slots the cache does not have.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        rotary: Rotary | None,
        window: int | None,
    ) -> None:
        check_shapes(q, k, v, cache, window)
        if rotary is not None:
            rotary.check_shape(q)
        tokens = q.shape[0]
        bounds = _check_rows(cache, tokens)
        self.has_idle_tokens = any(
            length == 0 and end > begin
            for length, (begin, end) in zip(cache.seq_lens.tolist(), pairwise(bounds), strict=True)
        )
        # What C reads by address must live as long as the step.
        self._table = cache.req_to_token.to(torch.int32).contiguous()
        self._indices = torch.cat(
            (
                cache.req_pool_indices.to(torch.int64),
                cache.seq_lens.to(torch.int64),
                torch.tensor(bounds, dtype=torch.int64),
                cache.out_cache_loc.flatten().to(torch.int64),
            )
        )
        self._rotary = rotary
        self._angles = None if rotary is None else rotary.freqs_cis.float().contiguous()
        self._call = self._describe(q, k, cache, window or 0)
        self._strides: tuple[tuple[int, ...], ...] = ()
        if not load_library().slots_fit(self._call, cache.k_buffer.shape[1]):
            raise ShapeError(
                f"The step names token slots outside the cache's {cache.k_buffer.shape[1]}."
            )

    def layer(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_id: int) -> AttentionStruct:
        """The call of one layer; valid until the next one is asked for, and with the tensors."""
        if not 0 <= layer_id < self._num_layers:
            raise ShapeError(f"The cache has {self._num_layers} layers, and none is {layer_id}.")
        call = self._call
        strides = (q.stride(), k.stride(), v.stride())
        if strides != self._strides:
            q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
            for name, x in (("q", q), ("k", k), ("v", v)):
                setattr(call, f"{name}_stride", x.stride(0))
                setattr(call, f"{name}_head_stride", x.stride(1))
            self._strides = (q.stride(), k.stride(), v.stride())
            self._inputs = (q, k, v)
        call.q, call.k, call.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        call.out = out.data_ptr()
        call.keys = self._keys + layer_id * self.layer_bytes[0]
        call.values = self._values + layer_id * self.layer_bytes[1]
        return call

    def check_layers(self, count: int) -> None:
        """Raise `ShapeError` if a model has more layers than the cache."""
        if count > self._num_layers:
            raise ShapeError(f"The cache has {self._num_layers} layers, and the model {count}.")

    def _describe(
        self, q: Tensor, k: Tensor, cache: AttentionCache, window: int
    ) -> AttentionStruct:
        keys, values, batch = cache.k_buffer, cache.v_buffer, cache.seq_lens.numel()
        self._keys, self._values = keys.data_ptr(), values.data_ptr()
        self._num_layers = keys.shape[0]
        self.layer_bytes = (keys.stride(0) * keys.itemsize, values.stride(0) * values.itemsize)
        first = self._indices.data_ptr()
        return AttentionStruct(
            key_stride=keys.stride(1),
            value_stride=values.stride(1),
            key_head_stride=keys.stride(2),
            value_head_stride=values.stride(2),
            table=self._table.data_ptr(),
            table_rows=first,
            lengths=first + 8 * batch,
            query_starts=first + 16 * batch,
            slots=first + 8 * (3 * batch + 1),
            rotary=None if self._angles is None else self._angles.data_ptr(),
            table_stride=self._table.stride(0),
            batch=batch,
            tokens=q.shape[0],
            heads=q.shape[1],
            kv_heads=k.shape[1],
            head_dim=q.shape[2],
            rotary_dim=0 if self._rotary is None else self._rotary.dim,
            window=window,
            type=_TYPES[q.dtype],
            kv_type=_TYPES[keys.dtype],
            is_interleaved=self._rotary is not None and self._rotary.interleaved,
        )


def _check_rows(cache: AttentionCache, tokens: int) -> list[int]:
    """Check the cache's index tensors; gives where each row's query tokens begin and end."""
    check_num_slots(cache.out_cache_loc, tokens)
    lengths = cache.seq_lens.tolist()
    bounds = query_bounds(cache.qo_indptr, len(lengths), tokens)
    counts = [end - begin for begin, end in pairwise(bounds)]
    check_lengths(lengths, counts, min(cache.max_len, cache.req_to_token.shape[1]))
    rows = cache.req_pool_indices.tolist()
    num_rows = cache.req_to_token.shape[0]
    if len(rows) != len(lengths) or not all(0 <= row < num_rows for row in rows):
        raise ShapeError(
            f"req_pool_indices must name one of {num_rows} table rows for each of "
            f"{len(lengths)} rows; it is {rows}."
        )
    if min(lengths, default=0) < 0 or min(counts, default=0) < 0 or bounds[0] != 0:
        raise ShapeError("Lengths and query counts cannot be negative, nor begin after token 0.")
    return bounds
