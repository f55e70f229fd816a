"""Writing K/V into token slots, where a negative slot means: not this token."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SlotWrites:
    """What a step stores, worked out on the device: the host waits for nothing.

    Attributes:
        tokens: ``[tokens]``: whose K/V are stored; a token without a slot repeats another's.
        slots: ``[tokens]`` int64: where.
        is_any: ``[]``: any token has a slot.
    """

    tokens: Tensor
    slots: Tensor
    is_any: Tensor

    def store(self, pool: Tensor, new: Tensor) -> None:
        """Copy ``new`` ``[tokens, ...]`` into a layer's keys or values ``[slots, ...]``."""
        rows = new.index_select(0, self.tokens).to(pool.dtype)
        kept = pool.index_select(0, self.slots)
        pool.index_copy_(0, self.slots, torch.where(self.is_any, rows, kept))


def plan_writes(slots: Tensor) -> SlotWrites:
    """Plan the writes of a step.

    Args:
        slots: ``[tokens]``, at least one token; negative ones are not written.
    """
    has_slot = slots >= 0
    token = torch.arange(len(slots), device=slots.device)
    tokens = torch.where(has_slot, token, has_slot.int().argmax())
    return SlotWrites(tokens, slots[tokens].clamp(min=0).to(torch.int64), has_slot.any())
