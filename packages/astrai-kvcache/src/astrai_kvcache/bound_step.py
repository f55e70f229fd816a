"""A step whose metadata are in a workspace's buffers."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, eq=False)
class BoundStep:
    """Where a step's metadata are.

    Attributes:
        rows: ``req_pool_indices[:batch]``.
        seq_lens: ``seq_lens[:batch]``.
        kv_indptr: ``kv_indptr[: batch + 1]``.
        qo_indptr: ``qo_indptr[: batch + 1]``.
        slots: ``out_cache_loc[:num_new]``, the slots of the new tokens.
        column: the same as ``[num_new, 1]``.
    """

    rows: Tensor
    seq_lens: Tensor
    kv_indptr: Tensor
    qo_indptr: Tensor
    slots: Tensor
    column: Tensor
