"""Moving host integers to the device without waiting for it."""

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
