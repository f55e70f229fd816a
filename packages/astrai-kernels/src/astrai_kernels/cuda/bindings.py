"""NVIDIA's Python bindings, imported when first needed: most machines do without them."""

import importlib
from functools import cache
from typing import Any

from astrai_kernels.errors import CudaUnavailableError

INSTALL = "install astrai-kernels[cu13], or astrai-kernels[cu12] beside a torch built for CUDA 12."


class CallError(Exception):
    """A call into a CUDA library failed; the message is the name of its status."""


def check(result: tuple[Any, ...]) -> Any:
    """What a call of the bindings gave.

    Args:
        result: its status, and its values.

    Returns:
        The one value there is, else a tuple of all.

    Raises:
        CallError: the status is not success.
    """
    status, *values = result
    if int(status) != 0:
        raise CallError(status.name)
    return values[0] if len(values) == 1 else tuple(values)


@cache
def nvrtc() -> Any:
    """The module ``cuda.bindings.nvrtc``, its library loaded.

    Raises:
        CudaUnavailableError: the module or NVRTC itself is missing.
    """
    module = _import("cuda.bindings.nvrtc")
    try:
        check(module.nvrtcVersion())
    except (CallError, RuntimeError) as error:
        raise CudaUnavailableError(
            f"NVRTC cannot be loaded ({_brief(error)}); {INSTALL}"
        ) from error
    return module


@cache
def driver() -> Any:
    """The module ``cuda.bindings.driver``, initialised.

    Raises:
        CudaUnavailableError: the module, NVIDIA's driver or a GPU is missing.
    """
    module = _import("cuda.bindings.driver")
    try:
        check(module.cuInit(0))
    except (CallError, RuntimeError) as error:
        raise CudaUnavailableError(
            f"NVIDIA's driver cannot be used ({_brief(error)}); install it on the host."
        ) from error
    return module


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CudaUnavailableError(
            f"{name} cannot be imported ({_brief(error)}); {INSTALL}"
        ) from error


def _brief(error: Exception) -> str:
    """The first sentence of a message, without its full stop."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
