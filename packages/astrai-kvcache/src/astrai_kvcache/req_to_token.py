"""The index table: where each token of each request is stored."""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from astrai_kvcache.errors import DoubleFreeError
from astrai_kvcache.staging import host_view, to_device


class ReqToTokenPool:
    """Maps ``[row, position]`` to a token slot; each request owns one row.

    A table in the host's own memory is written at once. On another device, writes of whole pages
    are collected on the host and reach the table in one vectorised write, when it is read or the
    next step is bound.

    Args:
        size: number of rows, i.e. of requests at once.
        max_context_len: positions per row; rounded up to whole pages.
        device: where the table lives.
        page_size: slots in a page, the unit of :meth:`write_pages`.

    Attributes:
        size: number of rows.
        max_context_len: positions per row.
        free_slots: rows that no request owns, next one first.
    """

    def __init__(
        self, size: int, max_context_len: int, device: torch.device, page_size: int = 1
    ) -> None:
        self.size = size
        self.max_context_len = max_context_len
        self.free_slots = deque(range(size))
        self._device = torch.device(device)
        self._page_size = page_size
        self._pages_per_row = -(-max_context_len // page_size)
        self._is_free = bytearray([True]) * size
        self._pending: dict[int, int] = {}  # row * pages_per_row + logical page -> page
        with torch.inference_mode(False):
            self._table = torch.zeros(
                (size, self._pages_per_row * page_size), dtype=torch.int32, device=device
            )
            self._flat = self._table.view(-1)
            self._by_page = self._table.view(size * self._pages_per_row, page_size)
            self._offsets = torch.arange(page_size, dtype=torch.int32, device=device)
        self._host = host_view(self._table)

    @property
    def is_in_host_memory(self) -> bool:
        """Whether the host writes the table itself."""
        return self._host is not None

    @property
    def req_to_token(self) -> Tensor:
        """The table, int32 ``[size, max_context_len]``, with all writes done."""
        self.flush()
        return self._table

    def places(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Where positions of rows are in the table, for :meth:`slots_at`; the next is one more."""
        return rows * self._table.size(1) + positions

    def slots_at(self, places: Tensor) -> Tensor:
        """The token slots at those places, int32, with all writes done."""
        self.flush()
        return self._flat.index_select(0, places)

    def alloc(self, num_reqs: int) -> list[int] | None:
        """Take ``num_reqs`` rows; None, with nothing changed, when not that many are free."""
        if num_reqs > len(self.free_slots):
            return None
        rows = [self.free_slots.popleft() for _ in range(num_reqs)]
        for row in rows:
            self._is_free[row] = False
        return rows

    def free(self, req_indices: Sequence[int]) -> None:
        """Give rows back.

        Raises:
            DoubleFreeError: a row is free already, or named twice; then none is freed.
        """
        if len(set(req_indices)) < len(req_indices) or any(self._is_free[r] for r in req_indices):
            raise DoubleFreeError(
                f"Rows {list(req_indices)} include one that is free already; free each row once."
            )
        for row in req_indices:
            self._is_free[row] = True
        self.free_slots.extend(req_indices)

    def own_slots(self) -> None:
        """Give each row slots of its own, consecutive ones, once and for all."""
        torch.arange(self._flat.numel(), out=self._flat)

    def write(self, indices: Any, values: Any) -> None:
        """Write slots at any index that a tensor takes; at once, after all earlier writes."""
        self.req_to_token[indices] = values

    def write_pages(self, row: int, logical_page: int, pages: Iterable[int]) -> None:
        """Write that ``row`` continues, from its page ``logical_page`` on, in ``pages``."""
        first = row * self._pages_per_row + logical_page
        if self._host is None:
            self._pending.update(enumerate(pages, first))
            return
        size = self._page_size
        for place, page in enumerate(pages, first):
            slots = array("i", range(page * size, (page + 1) * size))
            self._host[place * size : (place + 1) * size] = slots

    def pending_page(self, row: int, logical_page: int) -> int | None:
        """The page queued for that place in the table, if any."""
        return self._pending.get(row * self._pages_per_row + logical_page)

    def pending_writes(self) -> "array[int]":
        """The queued writes for :meth:`apply`; they stay queued until then."""
        return array("i", self._pending.keys()) + array("i", self._pending.values())

    def apply(self, writes: Tensor) -> None:
        """Do the queued writes, given as :meth:`pending_writes` in a tensor."""
        if not self._pending:
            return
        places, pages = writes.to(self._device).view(2, -1)
        slots = pages.unsqueeze(1) * self._page_size + self._offsets
        self._by_page.index_copy_(0, places.long(), slots)
        self._pending.clear()

    def flush(self) -> None:
        """Bring the table on the device up to date."""
        if self._pending:
            self.apply(to_device(self.pending_writes(), self._device))
