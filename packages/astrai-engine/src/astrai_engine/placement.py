"""Where a model runs and in which precision."""

import torch

from astrai_engine.config import Quantization
from astrai_engine.errors import ConfigurationError
from astrai_engine.loading.quantization import Precision
from astrai_kernels import native_unavailable_reason, set_num_threads

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


def rank_devices(first: torch.device, size: int) -> list[torch.device]:
    """Where each of the processes that run a model together computes.

    Args:
        first: where rank 0 does: the CPU, which all share, or a GPU, which others follow.
        size: how many there are.

    Raises:
        ConfigurationError: this machine has fewer GPUs.
    """
    if first.type == "cpu" or size == 1:
        return [first] * size
    start, count = first.index or 0, torch.cuda.device_count()
    if start + size > count:
        raise ConfigurationError(
            f"tensor_parallel_size is {size} and device {str(first)!r}, but this machine has "
            f"{count} usable CUDA devices; choose fewer."
        )
    return [torch.device("cuda", index) for index in range(start, start + size)]


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


def choose_precision(
    quantization: Quantization, device: torch.device, dtype: torch.dtype
) -> Precision:
    """How weights are kept for a setting: ``auto`` is the file's own where kernels can read it.

    Raises:
        ConfigurationError: quantised weights were asked for, and nothing here computes with them.
    """
    if quantization == "none":
        return "none"
    if device.type != "cpu" or dtype != torch.float32:
        reason: str | None = f"they need the CPU and float32, not {device} and {dtype}."
    else:
        reason = native_unavailable_reason()
    if reason is None:
        return "file" if quantization == "auto" else quantization
    if quantization == "auto":
        return "none"
    raise ConfigurationError(
        f"quantization is {quantization!r}, but the native kernels cannot serve: {reason} "
        "Use quantization auto or none."
    )


def use_threads(count: int, device: torch.device) -> None:
    """Give the native CPU kernels their number of threads.

    Raises:
        ConfigurationError: no native kernel can serve, so nothing would heed the number.
    """
    if device.type != "cpu":
        reason: str | None = f"the device is {str(device)!r}."
    else:
        reason = native_unavailable_reason()
    if reason is not None:
        raise ConfigurationError(
            f"num_threads is {count}, but the native kernels cannot serve: {reason} "
            "Leave num_threads out; torch's own threads are set by OMP_NUM_THREADS."
        )
    set_num_threads(count)


def choose_kv_dtype(
    name: str, device: torch.device, dtype: torch.dtype, precision: Precision
) -> torch.dtype:
    """The cache's type for a setting: ``auto`` is float16 beside quantised weights, else ``dtype``.

    Raises:
        ConfigurationError: the type is unknown.
    """
    if name == "auto":
        return dtype if precision == "none" else torch.float16
    return choose_dtype(name, device)
