"""One step's inputs, checked once and laid out for the native attention kernel.

Between two steps of a small model every torch operation costs 5 to 20 microseconds, most of them to
bring its code back into the processor's cache. So the index tensors are read where they are.
"""

from array import array
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.backends.inputs import check_num_slots
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
    return unsupported_cache(cache, q.shape[-1])


def unsupported_cache(cache: AttentionCache, head_dim: int) -> str | None:
    """Why the kernels cannot serve a cache of such heads, as a sentence; None when they can."""
    keys, values = cache.k_buffer, cache.v_buffer
    if keys.dtype not in _TYPES or values.dtype is not keys.dtype:
        return f"its cache must be float32, float16 or bfloat16, and is {keys.dtype}."
    if not keys.is_cpu or not values.is_cpu:
        return f"its cache must be on the CPU, and is on {keys.device}."
    if head_dim % _LANES:
        return f"head_dim must be a multiple of {_LANES}, and is {head_dim}."
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        return "the elements of a head in the cache must be consecutive."
    return None


class StepShape(NamedTuple):
    """What the layers of a step attend with.

    Attributes:
        tokens: packed query tokens.
        heads: query heads.
        kv_heads: key heads, and value heads.
        head_dim: elements of each.
        dtype: of queries, keys, values and output.
    """

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


class NativeStep:
    """What the layers of a step share.

    Args:
        shape: of its queries, keys and values; the cache's heads are alike.
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
        self, shape: StepShape, cache: AttentionCache, rotary: Rotary | None, window: int | None
    ) -> None:
        if rotary is not None:
            rotary.check_shape((shape.tokens, shape.heads, shape.head_dim))
        check_num_slots(cache.out_cache_loc, shape.tokens)
        if cache.req_pool_indices.shape != cache.seq_lens.shape:
            raise _misfit(cache, shape.tokens)
        # What C reads by address must live as long as the step.
        self._starts = _query_starts(cache, shape.tokens)
        self._table = _readable(cache.req_to_token, torch.int32)
        self._rows = _readable(cache.req_pool_indices, torch.int64)
        self._lengths = _readable(cache.seq_lens, torch.int64)
        self._slots = _readable(cache.out_cache_loc, torch.int64)
        self._angles = None if rotary is None else _readable(rotary.freqs_cis, torch.float32)
        self._strides: tuple[tuple[int, ...], ...] = ()
        self._call = self._describe(shape, cache, rotary, window)
        num_requests, width = self._table.shape
        num_idle = load_library().check_step(
            self._call, cache.k_buffer.shape[1], num_requests, min(cache.max_len, width)
        )
        if num_idle < 0:
            raise _misfit(cache, shape.tokens)
        self.has_idle_tokens = num_idle > 0

    def _describe(
        self, shape: StepShape, cache: AttentionCache, rotary: Rotary | None, window: int | None
    ) -> AttentionStruct:
        keys, values = cache.k_buffer, cache.v_buffer
        self._keys, self._values = keys.data_ptr(), values.data_ptr()
        self._num_layers = keys.shape[0]
        self.layer_bytes = (keys.stride(0) * keys.itemsize, values.stride(0) * values.itemsize)
        return AttentionStruct(
            key_stride=keys.stride(1),
            value_stride=values.stride(1),
            key_head_stride=keys.stride(2),
            value_head_stride=values.stride(2),
            table=self._table.data_ptr(),
            table_rows=self._rows.data_ptr(),
            lengths=self._lengths.data_ptr(),
            query_starts=_address(self._starts),
            slots=self._slots.data_ptr(),
            rotary=None if self._angles is None else self._angles.data_ptr(),
            table_stride=self._table.shape[1],
            batch=len(self._lengths),
            tokens=shape.tokens,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            rotary_dim=0 if rotary is None else rotary.dim,
            window=window or 0,
            type=_TYPES[shape.dtype],
            kv_type=_TYPES[keys.dtype],
            is_interleaved=rotary is not None and rotary.interleaved,
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

    def first_layer(self, qkv: int, attended: int) -> AttentionStruct:
        """The call of the first of all layers.

        Args:
            qkv: address of float32 ``[tokens, (heads + 2 * kv_heads) * head_dim]``: each token's
                queries, then its keys, then its values.
            attended: address of what attention gives, ``[tokens, heads * head_dim]``.
        """
        call = self._call
        kv_size = call.kv_heads * call.head_dim
        size = call.heads * call.head_dim
        call.q, call.k, call.v = qkv, qkv + 4 * size, qkv + 4 * (size + kv_size)
        call.q_stride = call.k_stride = call.v_stride = size + 2 * kv_size
        call.q_head_stride = call.k_head_stride = call.v_head_stride = call.head_dim
        call.out = attended
        call.keys, call.values = self._keys, self._values
        return call

    def check_layers(self, count: int) -> None:
        """Raise `ShapeError` if a model has more layers than the cache."""
        if count > self._num_layers:
            raise ShapeError(f"The cache has {self._num_layers} layers, and the model {count}.")


def _query_starts(cache: AttentionCache, tokens: int) -> "Tensor | array[int]":
    """Where each row's query tokens begin, and the end of the last, in 32 bits."""
    batch = len(cache.seq_lens)
    if cache.qo_indptr is not None and len(cache.qo_indptr) == batch + 1:
        return _readable(cache.qo_indptr, torch.int32)
    return array("i", query_bounds(cache.qo_indptr, batch, tokens))


def _address(numbers: "Tensor | array[int]") -> int:
    return numbers.data_ptr() if isinstance(numbers, Tensor) else numbers.buffer_info()[0]


def _readable(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as C reads it: itself, if it is that already."""
    if tensor.dtype is dtype and tensor.is_cpu and tensor.is_contiguous():
        return tensor
    return tensor.to("cpu", dtype).contiguous()


def _misfit(cache: AttentionCache, tokens: int) -> ShapeError:
    """What is wrong with the index tensors of a cache, which cannot be a step of so many tokens."""
    lengths = cache.seq_lens.tolist()
    try:
        bounds = query_bounds(cache.qo_indptr, len(lengths), tokens)
        counts = [end - begin for begin, end in pairwise(bounds)]
        check_lengths(lengths, counts, min(cache.max_len, cache.req_to_token.shape[1]))
    except ShapeError as error:
        return error
    rows = cache.req_pool_indices.tolist()
    num_rows = cache.req_to_token.shape[0]
    if len(rows) != len(lengths) or not all(0 <= row < num_rows for row in rows):
        return ShapeError(
            f"req_pool_indices must name one of {num_rows} table rows for each of "
            f"{len(lengths)} rows; it is {rows}."
        )
    if min(lengths, default=0) < 0 or min(counts, default=0) < 0 or bounds[0] != 0:
        return ShapeError("Lengths and query counts cannot be negative, nor begin after token 0.")
    return ShapeError(f"The step names token slots outside the cache's {cache.k_buffer.shape[1]}.")
