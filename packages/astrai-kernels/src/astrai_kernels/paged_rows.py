"""The rows of a step, and where their keys are: what all paged attention is told."""

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.errors import ShapeError


@dataclass(frozen=True)
class PagedRows:
    """The rows of a step, and where their keys are.

    Attributes:
        req_to_token: ``[requests, positions]`` int32: the token slot of each position.
        req_pool_indices: ``[batch]``: each row's row in `req_to_token`.
        seq_lens: ``[batch]``: tokens of each row, this step's included; 0 for an idle row.
        qo_indptr: ``[batch + 1]``: prefix sums of the rows' query tokens; None if all are equal.
        max_len: at least the largest of `seq_lens`.
    """

    req_to_token: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    qo_indptr: Tensor | None
    max_len: int

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return len(self.seq_lens)

    def check(self, num_tokens: int) -> None:
        """Raise `ShapeError` where the index tensors cannot describe ``num_tokens`` tokens."""
        if self.qo_indptr is None and (self.batch == 0 or num_tokens % self.batch):
            raise ShapeError(
                f"{num_tokens} tokens cannot be shared out equally to {self.batch} rows; "
                "a cache of unequal rows needs qo_indptr."
            )
        if self.qo_indptr is not None and (
            self.batch == 0 or len(self.qo_indptr) != self.batch + 1
        ):
            raise ShapeError(
                f"qo_indptr must have {self.batch + 1} entries for {self.batch} rows, at least "
                f"one of them, not {len(self.qo_indptr)}."
            )
        if len(self.req_pool_indices) != self.batch:
            raise ShapeError(
                f"req_pool_indices must name a table row for each of {self.batch} rows; "
                f"it has {len(self.req_pool_indices)}."
            )

    def bounds(self, num_tokens: int) -> Tensor:
        """Where each row's query tokens begin, and the end of the last: int64 ``[batch + 1]``."""
        if self.qo_indptr is not None:
            return self.qo_indptr.to(torch.int64)
        steps = torch.arange(self.batch + 1, device=self.seq_lens.device)
        return steps * (num_tokens // self.batch)
