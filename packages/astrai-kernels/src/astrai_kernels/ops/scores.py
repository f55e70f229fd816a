"""Attention of gathered rows in torch, with or without soft-capped scores."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float | None,
    softcap: float | None,
) -> Tensor:
    """Attend rows whose keys and values are at hand.

    Args:
        q: ``[rows, n_heads, queries, head_dim]``.
        k: ``[rows, n_kv_heads, keys, head_dim]``.
        v: alike.
        mask: broadcasts to ``[rows, n_heads, queries, keys]``, 0 or -inf, or booleans, true where
            a key is seen; None hides nothing.
        scale: see `AttentionBackend.attend`, and so for ``softcap``.
        softcap: what torch's own attention cannot do: with it, the scores are written out.

    Returns:
        ``[rows, n_heads, queries, head_dim]``.
    """
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    rows, kv_heads, queries = len(q), k.shape[1], q.shape[2]
    grouped = q.reshape(rows, kv_heads, -1, queries, q.shape[3])
    scores = (grouped @ k.unsqueeze(2).mT).flatten(1, 2).to(torch.float32)
    scores = softcap * torch.tanh(scores * ((scale or q.shape[-1] ** -0.5) / softcap))
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).to(q.dtype).reshape(rows, kv_heads, -1, *scores.shape[2:])
    out: Tensor = (weights @ v.unsqueeze(2)).flatten(1, 2)
    return out
