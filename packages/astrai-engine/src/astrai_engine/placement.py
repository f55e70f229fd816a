"""Where a model runs and in which precision."""

import torch

from astrai_engine.errors import ConfigurationError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device for a setting: ``auto`` is the first GPU if there is one, else the CPU.

    Raises:
        ConfigurationError: the device is unknown, or not on this machine.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"device is {name!r}; use auto, cpu, cuda or cuda:<number>.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if has_cuda else 0
        if (device.index or 0) >= count:
            raise ConfigurationError(
                f"device is {name!r}, but this machine has {count} usable CUDA devices; use cpu."
            )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type for a setting: ``auto`` is float32 on CPUs and bfloat16 on GPUs.

    Raises:
        ConfigurationError: the type is unknown.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype is {name!r}; use auto, {', '.join(_DTYPES)}.")
    return _DTYPES[name]
