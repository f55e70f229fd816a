"""Metadata of one step, written to a workspace's fixed buffers."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from astrai_kvcache.bound_step import BoundStep
from astrai_kvcache.errors import BindError, SharedPageError
from astrai_kvcache.host_binding import HostBinder
from astrai_kvcache.kv_cache import KVCache
from astrai_kvcache.layout import Layout
from astrai_kvcache.req_to_token import ReqToTokenPool
from astrai_kvcache.staging import to_device
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.task_pages import Task
from astrai_kvcache.workspace import BindBuffers


@dataclass(slots=True, eq=False)
class _DecodeStep(BoundStep):
    """A step that a workspace's buffers hold, from which the next one may follow in place.

    Attributes:
        workspace: the buffers.
        tasks: in batch order.
        lengths: of the tasks.
        growth: ``inc[: batch + 1]``, what one token each adds to ``kv_indptr``.
        places: int64 ``[num_new]``, where the table says what the slots of the new tokens are.
        versions: how often the buffers had been written when the step was bound.
    """

    workspace: BindBuffers
    tasks: list[Task]
    lengths: list[int]
    growth: Tensor
    places: Tensor
    versions: list[int] | None = None

    def precedes(self, tasks: list[Task], lengths: list[int], workspace: BindBuffers) -> bool:
        """Whether these are its tasks, each one token longer, and nobody wrote its buffers."""
        return (
            workspace is self.workspace
            and tasks == self.tasks
            and lengths == [length + 1 for length in self.lengths]
            and _versions(workspace) == self.versions
        )

    def advance(self, lengths: list[int]) -> None:
        """Become the decode step one token further, in place."""
        self.lengths = lengths
        self.seq_lens.add_(1)
        self.kv_indptr.add_(self.growth)
        self.places = self.places + 1  # may have been made in inference mode


class StepBinder:
    """Turns tasks into a :class:`KVCache`.

    In the host's memory the buffers are written directly. On a device they are advanced in place
    when the tasks of a step are those of the last one, each one token longer; otherwise they are
    filled from the host, in one transfer together with the pending writes of the index table.

    Args:
        storage: the K/V.
        table: the index table.
        layout: where the slots of tasks are.
    """

    def __init__(self, storage: KVStorage, table: ReqToTokenPool, layout: Layout) -> None:
        self._storage = storage
        self._table = table
        self._page_size = layout.page_size
        self._host = HostBinder(layout) if table.is_in_host_memory else None
        self._last: _DecodeStep | None = None  # if the next step may be an advance of it

    def bind(
        self,
        tasks: list[Task],
        workspace: BindBuffers,
        device: torch.device,
        q_lens: Sequence[int] | None,
    ) -> KVCache:
        """Fill the buffers for one step.

        Args:
            tasks: in batch order.
            workspace: the buffers.
            device: where host data are sent first.
            q_lens: new tokens of each task; None is one each, in the seed's shapes.

        Raises:
            BindError: the step does not fit the tasks or the workspace.
        """
        lengths = [task.length for task in tasks]
        news = [1] * len(tasks) if q_lens is None else list(q_lens)
        step: BoundStep | None = None
        if self._host is not None:
            self._check_room(tasks, news, workspace)
            step = self._host.bind(tasks, lengths, news, workspace)
        if step is None:
            step = self._bind_on_device(tasks, lengths, news, workspace, device)
        longest = max(lengths, default=0)
        if q_lens is None:
            return self._cache(step, longest, step.column)
        return self._cache(step, longest, step.slots, step.qo_indptr)

    def bind_equal(
        self, tasks: list[Task], workspace: BindBuffers, device: torch.device, start_pos: int
    ) -> KVCache:
        """Bind positions ``start_pos`` on of tasks of equal length, as ``[batch, new_tokens]``.

        Raises:
            BindError: the lengths differ, or the step does not fit the tasks or the workspace.
        """
        lengths = [task.length for task in tasks]
        if len(set(lengths)) > 1:
            raise BindError(
                f"start_pos needs tasks of equal length, not {sorted(set(lengths))}; pass q_lens "
                "for ragged steps."
            )
        longest = max(lengths, default=start_pos)
        news = [longest - start_pos] * len(tasks)
        self._check(tasks, news, workspace)
        step = self._fill(tasks, lengths, news, workspace, device)
        self._last = None
        slots = self._table.slots_at(step.places).long()
        return self._cache(step, longest, slots.view(len(tasks), longest - start_pos))

    def _bind_on_device(
        self,
        tasks: list[Task],
        lengths: list[int],
        q_lens: list[int],
        workspace: BindBuffers,
        device: torch.device,
    ) -> BoundStep:
        is_decode = q_lens.count(1) == len(tasks) == len(q_lens)
        step = self._last
        if is_decode and step is not None and step.precedes(tasks, lengths, workspace):
            step.advance(lengths)
        else:
            self._check_room(tasks, q_lens, workspace)
            step = self._fill(tasks, lengths, q_lens, workspace, device)
        step.versions = _versions(workspace)
        self._last = step if is_decode and step.versions is not None else None
        step.slots.copy_(self._table.slots_at(step.places))
        return step

    def _check_room(self, tasks: list[Task], q_lens: list[int], workspace: BindBuffers) -> None:
        self._check(tasks, q_lens, workspace)
        if sum(q_lens) > workspace.out_cache_loc.numel():
            raise BindError(
                f"{sum(q_lens)} new tokens do not fit a workspace for "
                f"{workspace.out_cache_loc.numel()}; build it with a larger max_tokens."
            )

    def _check(self, tasks: list[Task], q_lens: list[int], workspace: BindBuffers) -> None:
        if len(q_lens) != len(tasks):
            raise BindError(f"{len(q_lens)} q_lens for {len(tasks)} tasks; pass one for each.")
        if len(set(map(id, tasks))) < len(tasks):
            raise BindError("A task is named twice in one step; name each once.")
        if len(tasks) > workspace.seq_lens.numel():
            raise BindError(
                f"{len(tasks)} tasks do not fit a workspace for {workspace.seq_lens.numel()}; "
                "build it with a larger max_batch_size."
            )
        for task, q_len in zip(tasks, q_lens, strict=True):
            if not 0 <= q_len <= task.length:
                raise BindError(
                    f"A task of {task.length} tokens cannot compute {q_len} of them; reserve them "
                    "with task_extend first."
                )
            if q_len and task.length - q_len < task.num_shared * self._page_size:
                raise SharedPageError(
                    f"The step would write position {task.length - q_len}, but the first "
                    f"{task.num_shared * self._page_size} tokens of this task are in pages that "
                    "others may read; compute only the tokens after them."
                )

    def _fill(
        self,
        tasks: list[Task],
        lengths: list[int],
        q_lens: list[int],
        workspace: BindBuffers,
        device: torch.device,
    ) -> _DecodeStep:
        """Bring table and buffers up to date in one transfer."""
        writes = self._table.pending_writes()
        numbers = array("i", [task.row for task in tasks])
        numbers.extend(lengths)
        numbers.extend(accumulate(lengths, initial=0))
        numbers.extend(accumulate(q_lens, initial=0))
        batch = len(tasks)
        pending, rows, lens, kv, qo = torch.split(
            to_device(writes + numbers, device),
            [len(writes), batch, batch, batch + 1, batch + 1],
        )
        self._table.apply(pending)
        rows = workspace.req_pool_indices[:batch].copy_(rows)
        seq_lens = workspace.seq_lens[:batch].copy_(lens)
        kv_indptr = workspace.kv_indptr[: batch + 1].copy_(kv)
        qo_indptr = workspace.qo_indptr[: batch + 1].copy_(qo)
        places = self._places(rows, seq_lens, qo_indptr, sum(q_lens))
        slots = workspace.out_cache_loc.view(-1)[: places.numel()]
        return _DecodeStep(
            rows, seq_lens, kv_indptr, qo_indptr, slots, slots.unsqueeze(-1),
            workspace, tasks, lengths, workspace.inc[: batch + 1], places,
        )  # fmt: skip

    def _places(self, rows: Tensor, seq_lens: Tensor, qo_indptr: Tensor, num_new: int) -> Tensor:
        """Where the table has the last ``q_len`` tokens of each task, ``[num_new]``."""
        ends = qo_indptr[1:]
        q_lens = ends - qo_indptr[:-1]
        owners = torch.repeat_interleave(q_lens, output_size=num_new)
        positions = torch.arange(num_new, device=ends.device) + (seq_lens - ends)[owners]
        return self._table.places(rows[owners], positions)

    def _cache(
        self, step: BoundStep, max_len: int, slots: Tensor, qo_indptr: Tensor | None = None
    ) -> KVCache:
        return KVCache(
            k_buffer=self._storage.k_buffer,
            v_buffer=self._storage.v_buffer,
            req_to_token=self._table.req_to_token,
            req_pool_indices=step.rows,
            seq_lens=step.seq_lens,
            out_cache_loc=slots,
            max_len=max_len,
            kv_indptr=step.kv_indptr,
            qo_indptr=qo_indptr,
        )


def _versions(workspace: BindBuffers) -> list[int] | None:
    """How often each buffer was written, whoever did; None where torch does not keep count."""
    buffers = (
        workspace.req_pool_indices,
        workspace.seq_lens,
        workspace.kv_indptr,
        workspace.qo_indptr,
    )
    if any(buffer.is_inference() for buffer in buffers):
        return None
    return [buffer._version for buffer in buffers]
