"""What a step's attention reads and writes: worked out once, used by every layer.

Two kinds of work cover a step. *Padded rows* are decode rows of similar length, gathered into one
padded batch and attended in one call. *Row queries* are one row's queries against its own keys:
prefill, and decode rows whose slots are consecutive and so need no gathering.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.backends.base import AttentionCache
from astrai_kernels.backends.inputs import check_num_slots
from astrai_kernels.backends.rows import Row, Slots, active_rows

# Query tokens of a row attended in one call: each block reads only the keys it can see.
QUERY_BLOCK = 128

# From this many keys on, a decode row with consecutive slots is read in place: by then a call of
# its own costs less than gathering its keys.
IN_PLACE_MIN_KEYS = 512

# Keys gathered at a time: what is gathered should still be in the CPU's cache when attended.
MAX_GATHERED_KEYS = 4096


@dataclass(frozen=True)
class PaddedRows:
    """Decode rows attended together.

    Attributes:
        tokens: ``[rows]`` int64: their tokens in the packed step.
        is_whole_step: the step has no other tokens.
        slots: ``[rows, width]`` int64. A short row is padded with its own last slot: whatever
            other slots hold, NaN included, never reaches it.
        mask: ``[rows, 1, 1, width]``, 0 or -inf; None when no row is padded.
    """

    tokens: Tensor
    is_whole_step: bool
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class QueryBlock:
    """Queries of one row attended in one call.

    Attributes:
        tokens: their place in the packed step.
        keys: the keys they see, counted from the first key the row reads.
        mask: ``[queries, keys]``, 0 or -inf; None when every query sees every key.
    """

    tokens: slice
    keys: slice
    mask: Tensor | None


@dataclass(frozen=True)
class RowQueries:
    """One row's queries in blocks, and the slots of the keys it reads."""

    slots: Slots
    blocks: tuple[QueryBlock, ...]


@dataclass(frozen=True)
class StepPlan:
    """The attention work of one step.

    Attributes:
        written_tokens: ``[n]`` int64: tokens whose K/V are written; None when all are.
        written_slots: ``[n]`` int64: where they go.
        padded: decode rows attended in batches.
        rows: rows attended one by one.
        has_idle_tokens: some tokens belong to no attended row: their output is zero.
    """

    written_tokens: Tensor | None
    written_slots: Tensor
    padded: tuple[PaddedRows, ...]
    rows: tuple[RowQueries, ...]
    has_idle_tokens: bool


def plan_step(
    cache: AttentionCache, num_tokens: int, window: int | None, dtype: torch.dtype
) -> StepPlan:
    """Plan the attention of one step.

    Args:
        cache: the step's cache; its index tensors are read on the host.
        num_tokens: packed query tokens.
        window: sliding window in tokens, or None.
        dtype: of the queries, hence of the masks.

    Returns:
        The plan, on the cache's device.

    Raises:
        ShapeError: the cache's index tensors do not describe ``num_tokens`` tokens.
    """
    written_tokens, written_slots = _plan_write(cache.out_cache_loc.flatten(), num_tokens)
    rows = active_rows(cache, num_tokens, window)
    padded: list[Row] = []
    alone: list[Row] = []
    for row in rows:
        in_place = row.is_run and (len(rows) == 1 or row.num_keys >= IN_PLACE_MIN_KEYS)
        (alone if row.num_queries > 1 or in_place else padded).append(row)
    return StepPlan(
        written_tokens,
        written_slots,
        tuple(_pad(group, num_tokens, dtype) for group in _similar_lengths(padded)),
        tuple(_split_queries(alone, window, dtype)),
        has_idle_tokens=sum(row.num_queries for row in rows) < num_tokens,
    )


def _plan_write(out_cache_loc: Tensor, num_tokens: int) -> tuple[Tensor | None, Tensor]:
    check_num_slots(out_cache_loc, num_tokens)
    slots = out_cache_loc.to(torch.int64)
    is_written = slots >= 0
    if bool(is_written.all()):
        return None, slots
    tokens = is_written.nonzero().flatten()
    return tokens, slots[tokens]


def _similar_lengths(rows: list[Row]) -> list[list[Row]]:
    """Group rows so that a batch is not too large, and at most half of it is padding."""
    groups: list[list[Row]] = []
    width = max_rows = 0
    for row in sorted(rows, key=lambda row: row.num_keys, reverse=True):
        if not groups or 2 * row.num_keys < width or len(groups[-1]) == max_rows:
            groups.append([])
            width = row.num_keys
            max_rows = max(1, MAX_GATHERED_KEYS // width)
        groups[-1].append(row)
    return [sorted(group, key=lambda row: row.begin) for group in groups]


def _pad(rows: list[Row], num_tokens: int, dtype: torch.dtype) -> PaddedRows:
    table = torch.stack([row.table for row in rows])
    device = table.device
    num_keys = torch.tensor([[row.num_keys] for row in rows], device=device)
    first_key = torch.tensor([[row.first_key] for row in rows], device=device)
    column = torch.arange(max(row.num_keys for row in rows), device=device)
    slots = table.gather(1, first_key + torch.minimum(column, num_keys - 1)).to(torch.int64)
    is_padding = column >= num_keys
    mask = torch.zeros(is_padding.shape, dtype=dtype, device=device)
    mask.masked_fill_(is_padding, float("-inf"))
    return PaddedRows(
        torch.tensor([row.begin for row in rows], device=device),
        len(rows) == num_tokens,
        slots,
        mask[:, None, None, :] if bool(is_padding.any()) else None,
    )


def _split_queries(rows: list[Row], window: int | None, dtype: torch.dtype) -> Iterator[RowQueries]:
    if not rows:
        return
    reach = max(row.num_keys for row in rows)
    height = min(QUERY_BLOCK, max(row.num_queries for row in rows))
    mask = _causal_mask(height, reach, window, dtype, rows[0].table.device)
    for row in rows:
        yield RowQueries(row.slots(), tuple(_blocks(row, window, mask, reach)))


def _blocks(row: Row, window: int | None, mask: Tensor, reach: int) -> Iterator[QueryBlock]:
    for start in range(0, row.num_queries, QUERY_BLOCK):
        count = min(QUERY_BLOCK, row.num_queries - start)
        # Positions, counted from the first key the row reads.
        first_query = row.num_keys - row.num_queries + start
        first_key = 0 if window is None else max(0, first_query - window + 1)
        keys = slice(first_key, first_query + count)
        left = reach - (first_query - first_key)
        yield QueryBlock(
            slice(row.begin + start, row.begin + start + count),
            keys,
            mask[:count, left : left + keys.stop - keys.start] if count > 1 else None,
        )


def _causal_mask(
    height: int, reach: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A mask that every query block is a view of.

    Whether a query sees a key depends only on how far apart they are. Column ``c`` of row ``i``
    is the key at ``c - reach`` from the block's first query, so a block with ``n`` keys before
    its first query starts at column ``reach - n``.

    Returns:
        ``[height, reach + height]``, 0 where visible, else -inf.
    """
    query = torch.arange(height, device=device).unsqueeze(-1)
    key = torch.arange(-reach, height, device=device)
    hidden = key > query
    if window is not None:
        hidden |= query - key >= window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))
