"""The operations of all ranks together, by torch.distributed: gloo on CPUs, NCCL on GPUs."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GatherOptions

from astrai_engine.errors import ConfigurationError

_c10d: Any = dist  # its annotations lack much of what it has, and differ between versions

_STEP_LIMIT = timedelta(minutes=5)
"""How long a rank waits for the others within a step. Between steps nobody waits here."""


class ProcessRanks:
    """The ranks that run a model; see `astrai_engine.models.parallel.RankGroup`.

    It is a process group of its own: the program around it may have its default one besides.

    Args:
        rank: which of them this process is.
        size: how many there are.

    Raises:
        ConfigurationError: this torch is built without torch.distributed.
    """

    def __init__(self, rank: int, size: int) -> None:
        if not dist.is_available():
            raise ConfigurationError(
                "tensor_parallel_size above 1 needs a torch that is built with torch.distributed; "
                "install one, or set it to 1."
            )
        self.rank = rank
        self.size = size
        self._group: Any = None
        self._gather_to_first = GatherOptions()
        self._gather_to_first.rootRank = 0

    def connect(self, path: Path, device: torch.device) -> None:
        """Connect to the other ranks, which do the same; the file is of no use afterwards.

        Args:
            path: of a file that is not there yet, the same for all of them.
            device: where the tensors will be.

        Raises:
            RuntimeError: one of them does not come.
        """
        make = _gloo if device.type == "cpu" else _nccl
        self._group = make(_c10d.FileStore(str(path), self.size), self.rank, self.size)
        self.add(torch.zeros(1, device=device))  # NCCL connects here

    def add(self, part: Tensor) -> Tensor:
        """See `RankGroup.add`."""
        if part.numel():
            self._group.allreduce([part]).wait()
        return part

    def join(self, columns: Tensor) -> Tensor:
        """See `RankGroup.join`."""
        parts = [torch.empty_like(columns) for _ in range(self.size)] if self.rank == 0 else []
        if columns.numel():
            outputs = [parts] if parts else []
            self._group.gather(outputs, [columns], self._gather_to_first).wait()
        return torch.cat(parts, -1) if parts else columns

    def abort(self) -> None:
        """Wake whoever waits in an operation that a lost rank will never take part in."""
        if self._group.name() == "nccl":  # gloo notices by itself
            self._group.abort()


def _gloo(store: Any, rank: int, size: int) -> Any:
    """Over the loopback interface: nobody outside can connect, and it never goes away."""
    options = _c10d.ProcessGroupGloo._Options()
    options._devices = [_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _STEP_LIMIT
    return _c10d.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = _c10d.ProcessGroupNCCL.Options()
    options._timeout = _STEP_LIMIT
    return _c10d.ProcessGroupNCCL(store, rank, size, options)
