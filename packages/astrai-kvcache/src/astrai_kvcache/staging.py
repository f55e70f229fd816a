"""Moving host integers to where tensors live, without waiting and, on the host, without torch."""

import ctypes
from array import array

import torch
from torch import Tensor


def to_device(numbers: "array[int]", device: torch.device) -> Tensor:
    """Copy 32-bit integers to ``device`` in one transfer that the host does not wait for.

    Args:
        numbers: of type code ``i``, not empty, and not changed afterwards.
        device: where to.

    Returns:
        int32 ``[len(numbers)]``.
    """
    host = torch.frombuffer(numbers, dtype=torch.int32)
    # Only pinned memory is copied asynchronously; torch reuses it after the copy has ended.
    pinned = host.pin_memory() if device.type == "cuda" else host
    return pinned.to(device, non_blocking=True)


def is_in_host_memory(tensor: Tensor) -> bool:
    """Whether :func:`write_host` can write the tensor."""
    return tensor.is_cpu and tensor.is_contiguous()


def write_host(target: Tensor, numbers: "array[int]", start: int = 0) -> None:
    """Write integers into host memory; a microsecond, where a torch operation is 5 to 20.

    Args:
        target: contiguous, on the CPU, and of the numbers' own size of element.
        numbers: what to write.
        start: the first element written; all have to fit.
    """
    address, count = numbers.buffer_info()
    size = numbers.itemsize
    ctypes.memmove(target.data_ptr() + start * size, address, count * size)
