"""A step of the model as one array of integers, for ranks that have nothing but K/V and weights.

A worker has no pool: which slots belong to whom comes with each step. Of the index table it gets
the pages of the rows that take part, a number for each page.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels import ATTN_BACKEND, AttentionCache
from astrai_kvcache import KVCache, KVStorage

_BACKENDS = tuple(ATTN_BACKEND)
_ABSENT = -1
_NUM_SECTIONS = 9


@dataclass(frozen=True, slots=True)
class Step:
    """What `LlamaModel.forward` is called with.

    Attributes:
        input_ids: int64 ``[tokens]``.
        position_ids: int64 ``[tokens]``.
        cache: the step's K/V.
        backend: which backend computes attention.
        logit_rows: int64, the tokens whose logits are wanted; None is all.
    """

    input_ids: Tensor
    position_ids: Tensor
    cache: AttentionCache
    backend: ATTN_BACKEND
    logit_rows: Tensor | None


def encode(step: Step, page_size: int) -> memoryview:
    """A step's numbers, int64; where the K/V buffers lie is not among them.

    Args:
        step: any; its tensors may be on a GPU, which is then waited for.
        page_size: slots in a page, which all rows of the index table consist of.
    """
    cache = step.cache
    rows, owners = torch.unique(cache.req_pool_indices, return_inverse=True)
    firsts = cache.req_to_token[:, : cache.max_len : page_size].index_select(0, rows)
    sections: tuple[Tensor | None, ...] = (
        step.input_ids,
        step.position_ids,
        owners,
        cache.seq_lens,
        cache.out_cache_loc,
        firsts,
        cache.kv_indptr,
        cache.qo_indptr,
        step.logit_rows,
    )
    header = [cache.max_len, len(rows), _BACKENDS.index(step.backend)]
    header += [_ABSENT if section is None else section.numel() for section in sections]
    present = [section.flatten().long() for section in sections if section is not None]
    numbers = torch.cat([torch.tensor(header), torch.cat(present).cpu()])
    return numbers.numpy().data.cast("B")


def decode(content: bytearray, storage: KVStorage, page_size: int) -> Step:
    """The step that `encode` was given, over this rank's K/V.

    Args:
        content: what it gave.
        storage: this rank's K/V.
        page_size: as it was given.
    """
    numbers = torch.frombuffer(content, dtype=torch.int64)
    header = numbers[: 3 + _NUM_SECTIONS].tolist()
    (max_len, num_rows, backend), sizes = header[:3], header[3:]
    sections = numbers[len(header) :].to(storage.k_buffer.device)
    ids, positions, owners, seq_lens, slots, firsts, *others = torch.split(
        sections, [max(size, 0) for size in sizes]
    )
    kv_indptr, qo_indptr, logit_rows = (
        None if size == _ABSENT else other
        for size, other in zip(sizes[-len(others) :], others, strict=True)
    )
    offsets = torch.arange(page_size, device=firsts.device)
    cache = KVCache(
        k_buffer=storage.k_buffer,
        v_buffer=storage.v_buffer,
        req_to_token=(firsts.unsqueeze(-1) + offsets).view(num_rows, -1).int(),
        req_pool_indices=owners,
        seq_lens=seq_lens,
        out_cache_loc=slots if qo_indptr is not None else slots.view(len(owners), -1),
        max_len=max_len,
        kv_indptr=None if kv_indptr is None else kv_indptr.int(),
        qo_indptr=None if qo_indptr is None else qo_indptr.int(),
    )
    return Step(ids, positions, cache, _BACKENDS[backend], logit_rows)
