"""Attention in plain torch: read each row's K/V through the table, then call torch's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from astrai_kernels.backends.base import ATTN_BACKEND, AttentionBackend, AttentionCache
from astrai_kernels.backends.inputs import check_num_slots, check_shapes, paged_rows, weakly
from astrai_kernels.backends.plan import PaddedRows, RowQueries, StepPlan, plan_step
from astrai_kernels.ops.scores import attend_rows
from astrai_kernels.ops.slots import SlotWrites, plan_writes
from astrai_kernels.ops.tiles import Tiles, tile_queries
from astrai_kernels.rotary import Rotary

PlanKey = tuple[torch.Size, torch.Size, torch.Size, torch.dtype, int | None]


@dataclass(frozen=True)
class TiledStep:
    """A step planned on the device: what is stored, then what is attended."""

    writes: SlotWrites
    tiles: Tiles


class TorchNativeBackend(AttentionBackend):
    """Attention on any device, by torch's scaled-dot-product attention.

    The plan of a step is made in its first layer and kept while the same cache object is passed.
    On a GPU it is made there, and the host waits for nothing; what the index tensors hold is then
    not checked. An instance serves one thread at a time.
    """

    name: ClassVar[ATTN_BACKEND] = ATTN_BACKEND.TORCH_NATIVE

    def __init__(self) -> None:
        self._planned: Callable[[], AttentionCache | None] | None = None
        self._plans: dict[PlanKey, StepPlan | TiledStep] = {}

    @classmethod
    def availability(cls, device: torch.device) -> str | None:
        """None: torch serves every device."""
        del device
        return None

    @torch.no_grad()
    def attend(  # noqa: PLR0913 - see AttentionBackend
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        layer_id: int,
        *,
        rotary: Rotary | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        plan = self._plan(q, k, v, cache, window)
        if rotary is not None:
            q, k = rotary.apply(q), rotary.apply(k)
        keys, values = cache.k_buffer[layer_id], cache.v_buffer[layer_id]
        if isinstance(plan, TiledStep):
            plan.writes.store(keys, k)
            plan.writes.store(values, v)
            return plan.tiles.attend(q, keys, values, scale, softcap)
        _write(plan, keys, k)
        _write(plan, values, v)
        if len(plan.padded) == 1 and plan.padded[0].is_whole_step:
            return _attend_padded(plan.padded[0], q, keys, values, scale, softcap)
        out = q.new_zeros(q.shape) if plan.has_idle_tokens else q.new_empty(q.shape)
        for group in plan.padded:
            out.index_copy_(0, group.tokens, _attend_padded(group, q, keys, values, scale, softcap))
        for row in plan.rows:
            _attend_row(row, q, keys, values, scale, softcap, out)
        return out

    def _plan(
        self, q: Tensor, k: Tensor, v: Tensor, cache: AttentionCache, window: int | None
    ) -> StepPlan | TiledStep:
        if self._planned is None or self._planned() is not cache:
            self._planned, self._plans = weakly(cache), {}
        key = (q.shape, k.shape, v.shape, q.dtype, window)
        if key not in self._plans:
            check_shapes(q, k, v, cache, window)
            self._plans[key] = self._make_plan(cache, q, window)
        return self._plans[key]

    def _make_plan(
        self, cache: AttentionCache, q: Tensor, window: int | None
    ) -> StepPlan | TiledStep:
        if self._plans_on_device(q.device) and len(q) > 0:
            return _tile_step(cache, len(q), window)
        return plan_step(cache, len(q), window, q.dtype)

    @staticmethod
    def _plans_on_device(device: torch.device) -> bool:
        """Reading numbers costs nothing on a CPU; anywhere else it would stall the device."""
        return device.type != "cpu"


def _tile_step(cache: AttentionCache, num_tokens: int, window: int | None) -> TiledStep:
    slots = cache.out_cache_loc.flatten()
    check_num_slots(slots, num_tokens)
    tiles = tile_queries(paged_rows(cache), num_tokens, window)
    return TiledStep(plan_writes(slots), tiles)


def _write(plan: StepPlan, buffer: Tensor, new: Tensor) -> None:
    if plan.written_tokens is not None:
        new = new[plan.written_tokens]
    buffer.index_copy_(0, plan.written_slots, new.to(buffer.dtype))


def _attend_padded(
    group: PaddedRows,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float | None,
    softcap: float | None,
) -> Tensor:
    """Attend decode rows: ``[rows, n_heads, head_dim]``."""
    if not group.is_whole_step:
        q = q.index_select(0, group.tokens)
    slots = group.slots.flatten()
    k, v = (
        buffer.index_select(0, slots)
        .view(*group.slots.shape, *buffer.shape[1:])
        .to(q.dtype)
        .transpose(1, 2)
        for buffer in (keys, values)
    )
    return attend_rows(q.unsqueeze(2), k, v, mask=group.mask, scale=scale, softcap=softcap).view(
        q.shape
    )


def _attend_row(
    row: RowQueries,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float | None,
    softcap: float | None,
    out: Tensor,
) -> None:
    """Attend one row's queries, into their place in ``out``."""
    k, v = (
        (buffer[row.slots] if isinstance(row.slots, slice) else buffer.index_select(0, row.slots))
        .to(q.dtype)
        .transpose(0, 1)
        .unsqueeze(0)
        for buffer in (keys, values)
    )
    for block in row.blocks:
        attended = attend_rows(
            q[block.tokens].transpose(0, 1).unsqueeze(0),
            k[:, :, block.keys],
            v[:, :, block.keys],
            mask=block.mask,
            scale=scale,
            softcap=softcap,
        )
        out[block.tokens] = attended.squeeze(0).transpose(0, 1)
