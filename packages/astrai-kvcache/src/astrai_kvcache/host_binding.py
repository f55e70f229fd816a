"""A step's metadata in buffers that the host can write to by address.

A decode step takes a few milliseconds on a CPU, and each torch operation between two of them some
microseconds, most of them to bring torch's own code back into the cache. So nothing here is one.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from astrai_kvcache.bound_step import BoundStep
from astrai_kvcache.layout import Layout
from astrai_kvcache.staging import is_in_host_memory, write_host
from astrai_kvcache.task_pages import Task
from astrai_kvcache.workspace import BindBuffers


class HostBinder:
    """Writes steps to workspaces in the host's memory.

    Args:
        layout: where the slots of a task are.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last: tuple[BindBuffers, int, int, BoundStep] | None = None

    def bind(
        self,
        tasks: Sequence[Task],
        lengths: Sequence[int],
        q_lens: Sequence[int],
        workspace: BindBuffers,
    ) -> BoundStep | None:
        """Write the step in which each task computes its last ``q_len`` tokens.

        Args:
            tasks: in batch order.
            lengths: of the tasks.
            q_lens: new tokens of each.
            workspace: the buffers; large enough.

        Returns:
            Where it is; None, with nothing written, where the buffers are not those of
            :class:`BindBuffers` in consecutive memory of the host.
        """
        step = self._views(workspace, len(tasks), sum(q_lens))
        if step is not None:
            write_host(step.rows, array("q", [task.row for task in tasks]))
            write_host(step.seq_lens, array("q", lengths))
            write_host(step.kv_indptr, array("i", accumulate(lengths, initial=0)))
            write_host(step.qo_indptr, array("i", accumulate(q_lens, initial=0)))
            write_host(step.slots, self._slots(tasks, lengths, q_lens))
        return step

    def _views(self, workspace: BindBuffers, batch: int, num_new: int) -> BoundStep | None:
        """The parts of the buffers that a step uses; those of the last one again, if alike."""
        if self._last is not None and self._last[:3] == (workspace, batch, num_new):
            return self._last[3]
        whole = (
            workspace.req_pool_indices,
            workspace.seq_lens,
            workspace.kv_indptr,
            workspace.qo_indptr,
            workspace.out_cache_loc,
        )
        if not all(map(_is_writable, whole, _DTYPES)):
            return None
        rows, seq_lens, kv_indptr, qo_indptr, slots = whole
        slots = slots.view(-1)[:num_new]
        step = BoundStep(
            rows[:batch],
            seq_lens[:batch],
            kv_indptr[: batch + 1],
            qo_indptr[: batch + 1],
            slots,
            slots.unsqueeze(-1),
        )
        self._last = (workspace, batch, num_new, step)
        return step

    def _slots(
        self, tasks: Sequence[Task], lengths: Sequence[int], q_lens: Sequence[int]
    ) -> "array[int]":
        slots = array("q")
        for task, length, q_len in zip(tasks, lengths, q_lens, strict=True):
            if q_len == 1:
                slots.append(self._layout.slot(task.row, task.pages, length - 1))
            else:
                slots.extend(self._layout.slots(task.row, task.pages, length - q_len, length))
        return slots


_DTYPES = (torch.int64, torch.int64, torch.int32, torch.int32, torch.int64)


def _is_writable(buffer: Tensor, dtype: torch.dtype) -> bool:
    return buffer.dtype is dtype and is_in_host_memory(buffer)
