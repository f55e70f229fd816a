"""Moving host integers to where tensors live, without waiting and, on the host, without torch."""

import ctypes
from array import array
from typing import Literal

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


def host_view(tensor: Tensor) -> "memoryview[int] | None":
    """The integers of a tensor, for the host to write without torch.

    A write costs a microsecond or less; a torch operation between two steps of a model, whose
    weights push everything else out of the processor's cache, 5 to 20.

    Args:
        tensor: int32 or int64; it has to outlive the view.

    Returns:
        A flat view that takes slices of arrays of type code ``i`` or ``q``; None where the tensor
        is not on the CPU, not contiguous, or of another dtype.
    """
    code = _CODES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or not tensor.is_contiguous():
        return None
    memory = (ctypes.c_byte * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B").cast(code)


_CODES: "dict[torch.dtype, Literal['i', 'q']]" = {torch.int32: "i", torch.int64: "q"}
