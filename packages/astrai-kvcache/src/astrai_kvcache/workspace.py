"""Fixed buffers that a step's cache metadata are written to."""

from typing import Protocol

import torch
from torch import Tensor

from astrai_kvcache.errors import InvalidArgumentError


class BindBuffers(Protocol):
    """What :meth:`astrai_kvcache.PagePool.bind_tasks` needs of a workspace.

    Attributes:
        device: where the buffers live.
        req_pool_indices: int64 ``[max_batch_size]``.
        seq_lens: int64 ``[max_batch_size]``.
        kv_indptr: int32 ``[max_batch_size + 1]``.
        qo_indptr: int32 ``[max_batch_size + 1]``.
        inc: int32 ``[max_batch_size + 1]``: 0, 1, 2 and so on; only read.
        out_cache_loc: int64, at least ``max_batch_size`` elements.
    """

    device: torch.device
    req_pool_indices: Tensor
    seq_lens: Tensor
    kv_indptr: Tensor
    qo_indptr: Tensor
    inc: Tensor
    out_cache_loc: Tensor


class BindWorkspace:
    """A ready-made :class:`BindBuffers`.

    Args:
        max_batch_size: the most tasks in one step.
        max_tokens: the most new tokens in one step, all tasks together; at least
            ``max_batch_size``.
        device: where the buffers live: the pool's device.

    Raises:
        InvalidArgumentError: a size is out of range.
    """

    def __init__(self, max_batch_size: int, max_tokens: int, device: torch.device | str) -> None:
        if not 1 <= max_batch_size <= max_tokens:
            raise InvalidArgumentError(
                f"A workspace needs 1 <= max_batch_size <= max_tokens, not {max_batch_size} and "
                f"{max_tokens}."
            )
        self.device = torch.device(device)
        with torch.inference_mode(False):
            self.req_pool_indices = self._zeros(max_batch_size, torch.int64)
            self.seq_lens = self._zeros(max_batch_size, torch.int64)
            self.kv_indptr = self._zeros(max_batch_size + 1, torch.int32)
            self.qo_indptr = self._zeros(max_batch_size + 1, torch.int32)
            self.inc = torch.arange(max_batch_size + 1, dtype=torch.int32, device=self.device)
            self.out_cache_loc = self._zeros(max_tokens, torch.int64)

    def _zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.device)
