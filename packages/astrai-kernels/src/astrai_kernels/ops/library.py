"""Registers the package's ops with torch, so that they trace, compile and dispatch by device.

Declared by ``define`` and ``impl``: `torch.library.custom_op` would cost fifteen times as much in
every call.
"""

from collections.abc import Callable
from typing import Any

import torch

from astrai_kernels.errors import CudaUnavailableError

NAMESPACE = "astrai"
_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def register(
    schema: str,
    *,
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    fake: Callable[..., Any],
) -> Any:
    """Declare an op.

    Args:
        schema: its name and signature.
        cpu: what it computes, in torch.
        cuda: launches its kernel.
        fake: allocates its results and computes nothing.

    Returns:
        The op, to be called.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, cpu, "CPU")
    _library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def require(reason: str | None) -> None:
    """Raise `CudaUnavailableError` if there is a reason why a kernel cannot serve."""
    if reason is not None:
        raise CudaUnavailableError(f"The kernel cannot serve: {reason}")
