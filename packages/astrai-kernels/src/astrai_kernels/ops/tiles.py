"""Paged attention in torch, planned on the device: the host never waits to learn a number.

The host knows how many tokens and rows a step has and how long a row may be, and nothing else. So
the queries are cut into as many tiles as they could need at most: a tile holds queries of one row,
and which ones is worked out on the device. A tile reads as many keys as the longest row has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.ops.scores import attend_rows
from astrai_kernels.paged_rows import PagedRows

# Query tokens in a tile, in a step that has more tokens than rows.
TILE_TOKENS = 64

# Scores computed at a time: what they and the keys gathered for them take must stay bounded.
MAX_SCORES = 1 << 25


@dataclass(frozen=True)
class Tiles:
    """The attention of one step, in tiles of queries.

    Attributes:
        queries: ``[tiles, tile tokens]``: the tokens of each tile, its last one repeated.
        slots: ``[tiles, max_len]``: the slots each tile reads, its row's last one repeated:
            whatever other slots hold, NaN included, never reaches it.
        is_seen: ``[tiles, 1, tile tokens, max_len]``: the keys that each query sees.
        places: ``[tokens]``: where each token's result lies among those of the tiles.
        is_idle: ``[tokens, 1, 1]``: tokens of rows without keys.
        num_queries: ``[tokens, 1, 1]``: query tokens of each token's row.
    """

    queries: Tensor
    slots: Tensor
    is_seen: Tensor
    places: Tensor
    is_idle: Tensor
    num_queries: Tensor

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Attend over one layer.

        Args:
            q: ``[tokens, n_heads, head_dim]``.
            keys: ``[slots, n_kv_heads, head_dim]``; ``values`` alike.
            values: see ``keys``.
            scale: factor on the scores; None is ``head_dim ** -0.5``.
            softcap: scores become ``softcap * tanh(score / softcap)``; None leaves them.

        Returns:
            ``[tokens, n_heads, head_dim]``.
        """
        num_tiles, tile_tokens, max_len = (*self.queries.shape, self.slots.shape[1])
        count = max(1, MAX_SCORES // (q.shape[1] * tile_tokens * max_len))
        results: list[Tensor] = []
        for start in range(0, num_tiles, count):
            tiles = slice(start, start + count)
            slots = self.slots[tiles]
            attended = attend_rows(
                q[self.queries[tiles]].transpose(1, 2),
                keys[slots].to(q.dtype).transpose(1, 2),
                values[slots].to(q.dtype).transpose(1, 2),
                mask=self.is_seen[tiles],
                scale=scale,
                softcap=softcap,
            )
            results.append(attended.transpose(1, 2).flatten(0, 1))
        # A query that sees no key may have become NaN.
        return torch.cat(results)[self.places].masked_fill_(self.is_idle, 0)


def tile_queries(rows: PagedRows, num_tokens: int, window: int | None) -> Tiles:
    """Plan the attention of one step on the rows' device.

    What the index tensors hold is not checked: that would need the host.

    Args:
        rows: the step's rows.
        num_tokens: packed query tokens, at least 1.
        window: sliding window in tokens, or None.

    Raises:
        ShapeError: the shapes of the index tensors do not fit ``num_tokens``.
    """
    rows.check(num_tokens)
    bounds = rows.bounds(num_tokens)
    device, last_row = bounds.device, rows.batch - 1
    begins, ends = bounds[:-1], bounds[1:]
    tile_tokens = 1 if num_tokens == rows.batch else TILE_TOKENS
    num_tiles = num_tokens if tile_tokens == 1 else num_tokens // tile_tokens + rows.batch
    tile_ends = ((ends - begins + tile_tokens - 1) // tile_tokens).cumsum(0)
    tile_begins = tile_ends - (ends - begins + tile_tokens - 1) // tile_tokens

    tile = torch.arange(num_tiles, device=device)
    row = torch.searchsorted(tile_ends, tile, right=True).clamp_(max=last_row)
    first = begins[row] + (tile - tile_begins[row]) * tile_tokens
    queries = first.unsqueeze(1) + torch.arange(tile_tokens, device=device)
    queries = queries.minimum(ends[row].unsqueeze(1) - 1).clamp_(0, num_tokens - 1)

    key = torch.arange(max(rows.max_len, 1), device=device)
    length = rows.seq_lens[row].unsqueeze(1)
    slots = rows.req_to_token[
        rows.req_pool_indices[row].unsqueeze(1), key.minimum((length - 1).clamp_(min=0))
    ].masked_fill(length == 0, 0)
    last_seen = (length - ends[row].unsqueeze(1) + queries).unsqueeze(-1)
    is_seen = key <= last_seen
    if window is not None:
        is_seen &= key > last_seen - window

    token = torch.arange(num_tokens, device=device)
    row = torch.searchsorted(ends, token, right=True).clamp_(max=last_row)
    return Tiles(
        queries=queries,
        slots=slots.to(torch.int64),
        is_seen=is_seen.unsqueeze(1),
        places=tile_begins[row] * tile_tokens + token - begins[row],
        is_idle=(rows.seq_lens[row] == 0)[:, None, None],
        num_queries=(ends - begins)[row][:, None, None],
    )
