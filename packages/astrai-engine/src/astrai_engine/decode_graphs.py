"""Decode steps recorded as CUDA graphs, one for each padded batch size.

A decode step of a small model is hundreds of kernels of a few microseconds; starting them one by
one would take longer than they do. A graph starts them all at once, on the addresses it was
recorded with: the workspace's buffers, the pool and the weights, none of which ever moves. Rows
that pad a batch have no keys and no slot, so they read and write nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from astrai_engine.workspace import InferenceWorkspace
from astrai_kvcache import KVCache

Forward = Callable[[Tensor, Tensor, KVCache], Tensor]
"""Logits ``[tokens, vocab]`` of input ids, positions and a step's cache."""


class Recording(Protocol):
    """A function's work on a device, recorded once."""

    @property
    def output(self) -> Tensor:
        """What the function gave; every replay writes it anew."""

    def replay(self) -> None:
        """Do the work again, on what its inputs hold now."""


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, function: Callable[[], Tensor]) -> Recording:
        """Call the function until it is warm, then record what it does to the device."""


class CudaRecording:
    """A captured CUDA graph.

    Args:
        graph: the graph.
        output: what the captured function gave.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        """Start the graph on the current stream, and return at once."""
        self._graph.replay()


class CudaRecorder:
    """Captures CUDA graphs, which share the memory of what they compute in between.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # the first graph's memory

    def record(self, function: Callable[[], Tensor]) -> CudaRecording:
        """See `Recorder.record`."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = function()
        self._pool = graph.pool()
        return CudaRecording(graph, output)


class DecodeGraphs:
    """The decode steps of one model over one workspace and one pool.

    Args:
        forward: runs the model.
        workspace: whose buffers hold a step's inputs.
        recorder: makes the graphs.
        max_len: context per request in tokens, hence the longest row of any step.
    """

    def __init__(
        self, forward: Forward, workspace: InferenceWorkspace, recorder: Recorder, max_len: int
    ) -> None:
        self._forward = forward
        self._workspace = workspace
        self._recorder = recorder
        self._max_len = max_len
        self._recordings: dict[int, Recording] = {}

    def record(self, cache: KVCache) -> None:
        """Record every batch size, the largest first: the others then fit into its memory.

        Args:
            cache: any step of the pool, bound to the workspace, which this overwrites.
        """
        max_batch_size = len(self._workspace.seq_lens)
        self._pad(0, max_batch_size)
        for size in reversed(padded_sizes(max_batch_size)):
            ids, positions = self._workspace.input_ids, self._workspace.position_ids
            step = self._step(cache, size)
            self._recordings[size] = self._recorder.record(
                partial(self._forward, ids[:size], positions[:size], step)
            )

    def run(self, batch: int) -> Tensor:
        """Run the decode step that the workspace holds.

        Args:
            batch: its rows, each of one token; at most the workspace's.

        Returns:
            Logits ``[batch, vocab]``, which the next step overwrites.
        """
        size = min(size for size in self._recordings if size >= batch)
        self._pad(batch, size)
        recording = self._recordings[size]
        recording.replay()
        return recording.output[:batch]

    def _step(self, cache: KVCache, size: int) -> KVCache:
        """A decode step of so many rows, whatever the workspace will hold."""
        workspace = self._workspace
        return replace(
            cache,
            req_pool_indices=workspace.req_pool_indices[:size],
            seq_lens=workspace.seq_lens[:size],
            kv_indptr=workspace.kv_indptr[: size + 1],
            out_cache_loc=workspace.out_cache_loc[:size].unsqueeze(-1),
            qo_indptr=None,
            max_len=self._max_len,
        )

    def _pad(self, batch: int, size: int) -> None:
        """Make the rows from ``batch`` on idle; their tokens are whatever was there before."""
        if batch < size:
            # Through `data`: binding counts the writes of others, and these rows are nobody's.
            self._workspace.seq_lens.data[batch:size] = 0
            self._workspace.out_cache_loc[batch:size] = -1


def padded_sizes(max_batch_size: int) -> list[int]:
    """Powers of two below the largest batch, and that one."""
    sizes = [1 << n for n in range(max_batch_size.bit_length()) if 1 << n < max_batch_size]
    return [*sizes, max_batch_size]
