"""The rows of a step, read from a cache's index tensors on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.errors import ShapeError

Slots = slice | Tensor
"""Token slots: a slice where they are consecutive, else an int64 tensor."""


@dataclass(frozen=True)
class Row:
    """One row with queries to answer.

    Attributes:
        begin: its first query token in the packed step.
        num_queries: its query tokens.
        first_key: the first position that any of them sees.
        length: its positions, the queries' included.
        table: ``[max_len]``: the token slot of each position.
        is_run: the slots of the positions seen are consecutive.
    """

    begin: int
    num_queries: int
    first_key: int
    length: int
    table: Tensor
    is_run: bool

    @property
    def num_keys(self) -> int:
        """Positions seen by any of the queries."""
        return self.length - self.first_key

    def slots(self) -> Slots:
        """The token slots of the positions seen."""
        if self.is_run:
            first_slot = int(self.table[self.first_key])
            return slice(first_slot, first_slot + self.num_keys)
        return self.table[self.first_key : self.length].to(torch.int64)


def active_rows(cache: AttentionCache, num_tokens: int, window: int | None) -> list[Row]:
    """Read the rows that have both queries and keys.

    Args:
        cache: the step's cache.
        num_tokens: packed query tokens.
        window: sliding window in tokens, or None.

    Returns:
        The rows in their order in the step.

    Raises:
        ShapeError: the cache's index tensors do not describe ``num_tokens`` tokens.
    """
    lengths = cache.seq_lens.tolist()
    bounds = query_bounds(cache.qo_indptr, len(lengths), num_tokens)
    num_queries = [end - begin for begin, end in pairwise(bounds)]
    table = cache.req_to_token[:, : cache.max_len].index_select(0, cache.req_pool_indices)
    check_lengths(lengths, num_queries, table.shape[1])
    firsts = [
        0 if window is None else max(0, length - count - window + 1)
        for length, count in zip(lengths, num_queries, strict=True)
    ]
    runs = _are_runs(table, firsts, lengths)
    return [
        Row(bounds[i], num_queries[i], firsts[i], length, table[i], runs[i])
        for i, length in enumerate(lengths)
        if length > 0 and num_queries[i] > 0
    ]


def query_bounds(qo_indptr: Tensor | None, batch: int, num_tokens: int) -> list[int]:
    """Where each row's query tokens begin, and the end of the last.

    Raises:
        ShapeError: that is not ``num_tokens``, or nothing says how tokens are shared out.
    """
    if qo_indptr is None:
        num_queries, rest = divmod(num_tokens, max(batch, 1))
        if rest or num_queries * batch != num_tokens:
            raise ShapeError(
                f"{num_tokens} tokens cannot be shared out equally to {batch} rows; "
                "a cache of unequal rows needs qo_indptr."
            )
        return [num_queries * row for row in range(batch + 1)]
    bounds: list[int] = qo_indptr.tolist()
    if len(bounds) != batch + 1 or bounds[-1] != num_tokens:
        raise ShapeError(
            f"qo_indptr must have {batch + 1} entries and end at {num_tokens}, the step's "
            f"tokens; it has {len(bounds)} and ends at {bounds[-1]}."
        )
    return bounds


def check_lengths(lengths: Sequence[int], num_queries: Sequence[int], max_len: int) -> None:
    """Raise `ShapeError` where a row is longer than ``max_len``, or shorter than its queries."""
    for length, count in zip(lengths, num_queries, strict=True):
        if length > max_len:
            raise ShapeError(f"A row of {length} tokens exceeds the cache's max_len, {max_len}.")
        if 0 < length < count:
            raise ShapeError(f"A row of {length} tokens cannot have {count} query tokens.")


def _are_runs(table: Tensor, firsts: Sequence[int], lengths: Sequence[int]) -> list[bool]:
    """Whether each row's slots of positions ``[first, length)`` are consecutive."""
    device = table.device
    position = torch.arange(max(table.shape[1] - 1, 0), device=device)
    first = torch.tensor(firsts, device=device).unsqueeze(-1)
    last = torch.tensor(lengths, device=device).unsqueeze(-1) - 1
    breaks = (table[:, 1:] - table[:, :-1] != 1) & (position >= first) & (position < last)
    runs: list[bool] = (~breaks.any(-1)).tolist()
    return runs
