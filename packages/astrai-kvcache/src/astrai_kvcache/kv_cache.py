"""What a model needs to know of the cache for one step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class KVCache:
    """Pure data for one step; attention indexes the buffers directly.

    The metadata are views of the workspace's fixed buffers, so they hold until the next step is
    bound, and a captured CUDA graph that reads them can be replayed.

    Attributes:
        k_buffer: ``[n_layers, size, n_kv_heads, head_dim]``.
        v_buffer: same shape.
        req_to_token: int32 ``[num_reqs, max_context_len]``, the token slot of each position.
        req_pool_indices: int64 ``[batch]``, each request's row of ``req_to_token``.
        seq_lens: int64 ``[batch]``, tokens of each request, this step's included.
        out_cache_loc: int64, the slots that this step writes: ``[sum(q_lens)]`` when bound with
            ``q_lens``, else ``[batch, new_tokens]``.
        max_len: the largest of ``seq_lens``, on the host, so that nobody waits for the device.
        kv_indptr: int32 ``[batch + 1]``, running sum of ``seq_lens``.
        qo_indptr: int32 ``[batch + 1]``, running sum of ``q_lens``; None when bound without.
    """

    k_buffer: Tensor
    v_buffer: Tensor
    req_to_token: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    out_cache_loc: Tensor
    max_len: int = 0
    kv_indptr: Tensor | None = None
    qo_indptr: Tensor | None = None
