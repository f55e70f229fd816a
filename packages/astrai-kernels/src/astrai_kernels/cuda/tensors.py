"""How tensors are described to kernels."""

import torch
from torch import Tensor

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""What the kernels' sources call a dtype."""

_VECTOR_BYTES = 16


def is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is contiguous and begins at multiples of 16 bytes everywhere."""
    return (
        x.stride(-1) == 1
        and x.data_ptr() % _VECTOR_BYTES == 0
        and all(stride * x.itemsize % _VECTOR_BYTES == 0 for stride in x.stride()[:-1])
    )


def elsewhere(x: Tensor, *others: Tensor | None) -> str | None:
    """Why a kernel cannot reach tensors together with ``x``, as a sentence; None when it can.

    A kernel that is given an address of the host, or of another GPU, ends the whole process's use
    of its GPU.
    """
    for other in others:
        if other is not None and other.device != x.device:
            return f"all tensors must be on one device, and are on {x.device} and {other.device}."
    return None


def layout(**tensors: Tensor) -> dict[str, int]:
    """Strides of ``[tokens, heads, ...]``: fields ``NAME_token_stride``, ``NAME_head_stride``."""
    return {
        f"{name}_{what}_stride": tensor.stride(dim)
        for name, tensor in tensors.items()
        for dim, what in enumerate(("token", "head"))
    }
