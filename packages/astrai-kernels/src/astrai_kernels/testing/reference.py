"""Attention in float64, token by token: slow, and easy to believe."""

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.rotary import Rotary
from astrai_kernels.testing.steps import Step


@dataclass(frozen=True, eq=False)
class Expected:
    """What a step must give.

    Attributes:
        out: ``[tokens, n_heads, head_dim]`` float64.
        k_buffer: the cache's keys afterwards; `v_buffer` alike.
    """

    out: Tensor
    k_buffer: Tensor
    v_buffer: Tensor


def reference_attend(
    step: Step,
    layer_id: int = 0,
    *,
    rotary: Rotary | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
) -> Expected:
    """Compute in float64, token by token, what `AttentionBackend.attend` must give.

    Takes what `AttentionBackend.attend` takes; changes nothing.
    """
    cache, q, k = step.cache, step.q.double(), step.k.double()
    if rotary is not None:
        q, k = _rotate(q, rotary), _rotate(k, rotary)
    k_buffer, v_buffer = cache.k_buffer.clone(), cache.v_buffer.clone()
    slots = cache.out_cache_loc.flatten()
    k_buffer[layer_id, slots[slots >= 0]] = k[slots >= 0].to(k_buffer.dtype)
    v_buffer[layer_id, slots[slots >= 0]] = step.v[slots >= 0].to(v_buffer.dtype)
    out = torch.zeros_like(q)
    bounds = _query_bounds(cache, len(q))
    for row, length in enumerate(cache.seq_lens.tolist()):
        table = cache.req_to_token[cache.req_pool_indices[row]].long()
        for token in range(bounds[row], bounds[row + 1] if length else bounds[row]):
            stop = length - (bounds[row + 1] - token) + 1
            seen = table[max(0, stop - window) if window else 0 : stop]
            out[token] = _attend_one(
                q[token], k_buffer[layer_id, seen], v_buffer[layer_id, seen], scale, softcap
            )
    return Expected(out, k_buffer, v_buffer)


def _query_bounds(cache: AttentionCache, tokens: int) -> list[int]:
    if cache.qo_indptr is not None:
        return [int(bound) for bound in cache.qo_indptr]
    batch = len(cache.seq_lens)
    return [tokens // batch * row for row in range(batch + 1)]


def _attend_one(
    q: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None
) -> Tensor:
    """One token's heads ``[n_heads, head_dim]`` over ``[keys, n_kv_heads, head_dim]``."""
    group = q.shape[0] // keys.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("hd,khd->hk", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.einsum("hk,khd->hd", scores.softmax(-1), v)


def _rotate(x: Tensor, rotary: Rotary) -> Tensor:
    if x.shape[-1] > rotary.dim:
        return torch.cat((_rotate(x[..., : rotary.dim], rotary), x[..., rotary.dim :]), -1)
    cos, sin = (part.double().unsqueeze(-2) for part in rotary.freqs_cis.unbind(-1))
    if rotary.interleaved:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
