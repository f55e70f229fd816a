"""A step's metadata in buffers that the host can write to by address.

A decode step takes a few milliseconds on a CPU, and each torch operation between two of them some
microseconds, most of them to bring torch's own code back into the cache. So a step of the same size
as the one before it takes none.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from astrai_kvcache.bound_step import BoundStep
from astrai_kvcache.layout import Layout
from astrai_kvcache.staging import host_view
from astrai_kvcache.task_pages import Task
from astrai_kvcache.workspace import BindBuffers


class HostBinder:
    """Writes steps to workspaces in the host's memory.

    Args:
        layout: where the slots of a task are.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last: _Views | None = None

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
        views = self._views_of(workspace, len(tasks), sum(q_lens))
        if views is None:
            return None
        numbers = (
            array("q", [task.row for task in tasks]),
            array("q", lengths),
            array("i", accumulate(lengths, initial=0)),
            array("i", accumulate(q_lens, initial=0)),
            self._slots(tasks, lengths, q_lens),
        )
        for buffer, values in zip(views.buffers, numbers, strict=True):
            buffer[:] = values
        return views.step

    def _views_of(self, workspace: BindBuffers, batch: int, num_new: int) -> "_Views | None":
        """The parts of the buffers that a step uses; those of the last one again, if alike."""
        last = self._last
        if last is not None and last.workspace is workspace and last.sizes == (batch, num_new):
            return last
        self._last = _Views.of(workspace, batch, num_new)
        return self._last

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


class _Views(NamedTuple):
    """The parts of a workspace's buffers that a step uses.

    Attributes:
        workspace: whose buffers they are.
        sizes: tasks and new tokens of the step.
        buffers: for the host to write, in the order of `BoundStep`.
        step: the same as tensors.
    """

    workspace: BindBuffers
    sizes: tuple[int, int]
    buffers: "list[memoryview[int]]"
    step: BoundStep

    @classmethod
    def of(cls, workspace: BindBuffers, batch: int, num_new: int) -> "_Views | None":
        """The views; None where the host cannot write the buffers as what they have to be."""
        parts = (
            workspace.req_pool_indices[:batch],
            workspace.seq_lens[:batch],
            workspace.kv_indptr[: batch + 1],
            workspace.qo_indptr[: batch + 1],
            workspace.out_cache_loc.view(-1)[:num_new],
        )
        buffers = [view for view in map(host_view, parts) if view is not None]
        if [view.format for view in buffers] != ["q", "q", "i", "i", "q"]:
            return None
        step = BoundStep(*parts, parts[-1].unsqueeze(-1))
        return cls(workspace, (batch, num_new), buffers, step)
