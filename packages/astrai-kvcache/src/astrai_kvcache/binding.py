"""Metadata of one step, written to a workspace's fixed buffers."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from astrai_kvcache.errors import BindError, SharedPageError
from astrai_kvcache.kv_cache import KVCache
from astrai_kvcache.req_to_token import ReqToTokenPool
from astrai_kvcache.staging import to_device
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.task_pages import Task
from astrai_kvcache.workspace import BindBuffers


@dataclass(slots=True, eq=False)
class _BoundStep:
    """The decode step that a workspace's buffers hold."""

    workspace: BindBuffers
    tasks: list[Task]
    lengths: list[int]
    versions: list[int]


class StepBinder:
    """Turns tasks into a :class:`KVCache`.

    When the tasks of a step are those of the last one, each one token longer, the buffers are
    advanced in place on the device; otherwise they are filled from the host, in one transfer
    together with the pending writes of the index table.

    Args:
        storage: the K/V.
        table: the index table.
        page_size: slots in a page.
    """

    def __init__(self, storage: KVStorage, table: ReqToTokenPool, page_size: int) -> None:
        self._storage = storage
        self._table = table
        self._page_size = page_size
        self._last: _BoundStep | None = None

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
        batch = len(tasks)
        lengths = [task.length for task in tasks]
        news = [1] * batch if q_lens is None else list(q_lens)
        is_decode = len(news) == batch == news.count(1)
        if is_decode and self._continues(tasks, lengths, workspace):
            self._table.flush()
            workspace.seq_lens[:batch].add_(1)
            workspace.kv_indptr[: batch + 1].add_(workspace.inc[: batch + 1])
        else:
            self._check(tasks, news, workspace)
            if sum(news) > workspace.out_cache_loc.numel():
                raise BindError(
                    f"{sum(news)} new tokens do not fit a workspace for "
                    f"{workspace.out_cache_loc.numel()}; build it with a larger max_tokens."
                )
            self._fill(tasks, news, workspace, device)
        self._last = _remember(workspace, tasks, lengths) if is_decode else None
        slots = workspace.out_cache_loc.view(-1)[: sum(news)]
        slots.copy_(self._write_slots(workspace, batch, slots.numel(), is_decode))
        if q_lens is None:
            return self._cache(workspace, lengths, slots.unsqueeze(-1))
        return self._cache(workspace, lengths, slots, workspace.qo_indptr[: batch + 1])

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
        end = max(lengths, default=start_pos)
        self._check(tasks, [end - start_pos] * len(tasks), workspace)
        self._fill(tasks, [end - start_pos] * len(tasks), workspace, device)
        self._last = None
        rows = workspace.req_pool_indices[: len(tasks)]
        slots = self._table.req_to_token[rows, start_pos:end].long()
        return self._cache(workspace, lengths, slots)

    def _continues(self, tasks: list[Task], lengths: list[int], workspace: BindBuffers) -> bool:
        last = self._last
        return (
            last is not None
            and last.workspace is workspace
            and last.tasks == tasks
            and lengths == [length + 1 for length in last.lengths]
            and last.versions == _versions(workspace)
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
        self, tasks: list[Task], q_lens: list[int], workspace: BindBuffers, device: torch.device
    ) -> None:
        """Bring table and buffers up to date in one transfer."""
        writes = self._table.pending_writes()
        lengths = [task.length for task in tasks]
        numbers = array("i", [task.row for task in tasks])
        numbers.extend(lengths)
        numbers.extend(accumulate(lengths, initial=0))
        numbers.extend(accumulate(q_lens, initial=0))
        batch = len(tasks)
        sent = to_device(writes + numbers, device)
        pending, rows, lens, kv, qo = torch.split(
            sent, [len(writes), batch, batch, batch + 1, batch + 1]
        )
        self._table.apply(pending)
        workspace.req_pool_indices[:batch].copy_(rows)
        workspace.seq_lens[:batch].copy_(lens)
        workspace.kv_indptr[: batch + 1].copy_(kv)
        workspace.qo_indptr[: batch + 1].copy_(qo)

    def _write_slots(
        self, workspace: BindBuffers, batch: int, num_new: int, is_decode: bool
    ) -> Tensor:
        """Slots of the new tokens, the last of each task, ``[num_new]``."""
        rows = workspace.req_pool_indices[:batch]
        lens = workspace.seq_lens[:batch]
        if is_decode:
            return self._table.req_to_token[rows, lens - 1]
        ends = workspace.qo_indptr[1 : batch + 1]
        q_lens = ends - workspace.qo_indptr[:batch]
        owners = torch.repeat_interleave(q_lens, output_size=num_new)
        positions = torch.arange(num_new, device=workspace.device) + (lens - ends)[owners]
        return self._table.req_to_token[rows[owners], positions]

    def _cache(
        self,
        workspace: BindBuffers,
        lengths: list[int],
        slots: Tensor,
        qo_indptr: Tensor | None = None,
    ) -> KVCache:
        batch = len(lengths)
        return KVCache(
            k_buffer=self._storage.k_buffer,
            v_buffer=self._storage.v_buffer,
            req_to_token=self._table.req_to_token,
            req_pool_indices=workspace.req_pool_indices[:batch],
            seq_lens=workspace.seq_lens[:batch],
            out_cache_loc=slots,
            max_len=max(lengths, default=0),
            kv_indptr=workspace.kv_indptr[: batch + 1],
            qo_indptr=qo_indptr,
        )


def _remember(workspace: BindBuffers, tasks: list[Task], lengths: list[int]) -> _BoundStep | None:
    versions = _versions(workspace)
    return None if versions is None else _BoundStep(workspace, tasks, lengths, versions)


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
