"""Random inputs of one attention step, over a cache that is plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionBackend
from astrai_kernels.rotary import Rotary, RotaryEmbedding


@dataclass(frozen=True, eq=False)
class StepCache:
    """A K/V cache for one step: the plainest `AttentionCache`."""

    k_buffer: Tensor
    v_buffer: Tensor
    req_to_token: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    out_cache_loc: Tensor
    max_len: int
    kv_indptr: Tensor
    qo_indptr: Tensor | None


@dataclass(frozen=True, eq=False)
class Step:
    """The inputs of one `AttentionBackend.attend` call.

    Attributes:
        q: ``[tokens, n_heads, head_dim]``.
        k: ``[tokens, n_kv_heads, head_dim]``.
        v: ``[tokens, n_kv_heads, head_dim]``.
        cache: holds the rows' earlier K/V; every slot of no row is NaN.
        position_ids: ``[tokens]``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cache: StepCache
    position_ids: Tensor

    def attend(self, backend: AttentionBackend, layer_id: int = 0, **options: Any) -> Tensor:
        """Call the backend."""
        return backend.attend(self.q, self.k, self.v, self.cache, layer_id, **options)


def make_step(  # noqa: PLR0913 - one knob for each thing a backend can get wrong
    seq_lens: Sequence[int],
    q_lens: Sequence[int],
    *,
    heads: tuple[int, int] = (9, 3),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    shuffled: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Step:
    """Make random inputs for one step over two layers.

    Args:
        seq_lens: positions of each row, the step's included; 0 makes an idle row.
        q_lens: query tokens of each row.
        heads: query heads and K/V heads.
        head_dim: elements of a head.
        dtype: of q, k and v.
        kv_dtype: of the cache; None is ``dtype``.
        shuffled: scatter the slots; else a row's slots are consecutive.
        device: where the tensors are.
        seed: equal seeds give equal values, whatever the slots.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    (n_heads, n_kv_heads), kv_dtype = heads, kv_dtype or dtype
    max_len, num_slots = max(1, *seq_lens), sum(seq_lens) + len(seq_lens) + 7
    order = torch.arange(num_slots)
    if shuffled:
        order = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed))
    # A batch row's table row has another index, and order[0] is nobody's slot.
    table = torch.zeros(len(seq_lens) + 2, max_len, dtype=torch.int32)
    pool_indices = torch.arange(len(seq_lens), 0, -1)
    buffers = torch.full((2, 2, num_slots, n_kv_heads, head_dim), float("nan"))
    written, positions, used = [], [], 1
    for row, (length, q_len) in enumerate(zip(seq_lens, q_lens, strict=True)):
        first = max(length - q_len, 0)
        slots = order[used : used + max(length, q_len)]
        used += max(length, q_len)
        table[pool_indices[row], :length] = slots[:length].to(torch.int32)
        buffers[:, :, slots[:first]] = random(2, 2, first, n_kv_heads, head_dim)
        written.append(slots[first : first + q_len])
        positions.append(torch.arange(first, first + q_len))
    tokens = sum(q_lens)
    k_buffer, v_buffer = buffers.to(device, kv_dtype)
    cache = StepCache(
        k_buffer=k_buffer,
        v_buffer=v_buffer,
        req_to_token=table.to(device),
        req_pool_indices=pool_indices.to(device),
        seq_lens=torch.tensor(seq_lens, device=device),
        out_cache_loc=torch.cat(written).to(device),
        max_len=max_len,
        kv_indptr=_prefix_sums(seq_lens).to(device),
        qo_indptr=_prefix_sums(q_lens).to(device),
    )
    return Step(
        random(tokens, n_heads, head_dim).to(device, dtype),
        random(tokens, n_kv_heads, head_dim).to(device, dtype),
        random(tokens, n_kv_heads, head_dim).to(device, dtype),
        cache,
        torch.cat(positions).to(device),
    )


def _prefix_sums(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)


def make_rotary(
    step: Step, *, interleaved: bool = False, dim: int | None = None, base: float = 10000.0
) -> Rotary:
    """The rotary angles of a step's tokens, for whole heads or their first ``dim`` elements."""
    dim, max_len = dim or step.q.shape[-1], step.cache.max_len + len(step.q)
    return Rotary(RotaryEmbedding(dim, max_len, base)(step.position_ids), interleaved)
