"""A report of which attention backend serves this machine, and why the others do not."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version

import torch

from astrai_kernels.backends.selection import choice_in_force, select_backend
from astrai_kernels.cpu.library import load_library
from astrai_kernels.cuda.bindings import check, driver
from astrai_kernels.cuda.compiler import (
    cached_kernels,
    compiler_version,
    kernel_folder,
    known_archs,
    target_for,
)
from astrai_kernels.errors import CudaUnavailableError, NativeUnavailableError


def default_device() -> torch.device:
    """The device an engine would choose: the GPU where torch finds one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def report(device: torch.device) -> str:
    """Describe the backend selected for a device.

    Args:
        device: where the tensors would be.

    Returns:
        Lines of text, ending with a newline.

    Raises:
        EnvironmentValueError: ``ASTRAI_BACKEND`` names no backend.
    """
    choice, selection = choice_in_force(), select_backend(device)
    delegates = selection.name in [each.name for each in selection.rejected]
    lines = [
        ("version", f"astrai-kernels {version('astrai-kernels')}, torch {torch.__version__}"),
        ("device", str(device)),
        ("requested", choice.backend.value if choice else "auto"),
        ("backend", f"{selection.name} (delegating to torch)" if delegates else selection.name),
        *(("rejected", f"{each.name}: {each.reason}") for each in selection.rejected),
        ("cpu", _native_cpu()),
        *(("cuda", line) for line in _cuda()),
    ]
    return "".join(f"{label:<11}{text}\n" for label, text in lines)


def _cuda() -> Iterator[str]:
    """Each thing that CUDA kernels need: what there is of it, or why there is none."""
    parts: list[Callable[[], str]] = [_nvrtc, _driver]
    parts += (partial(_gpu, number) for number in range(torch.cuda.device_count()))
    for describe in parts:
        try:
            yield describe()
        except CudaUnavailableError as error:
            yield str(error)
    yield f"{len(cached_kernels())} compiled kernels in {kernel_folder()}"


def _nvrtc() -> str:
    version, archs = compiler_version(), known_archs()
    return f"NVRTC {version}, for sm_{min(archs)} to sm_{max(archs)}"


def _driver() -> str:
    version = check(driver().cuDriverGetVersion())
    return f"driver for CUDA {version // 1000}.{version % 1000 // 10}"


def _gpu(number: int) -> str:
    properties = torch.cuda.get_device_properties(number)
    target = target_for(10 * properties.major + properties.minor)
    return f"GPU {number}: {properties.name}, kernels compiled for {target.name}"


def _native_cpu() -> str:
    """What the native CPU kernels are, or why there are none; compiles them if need be."""
    try:
        library = load_library()
    except NativeUnavailableError as error:
        return f"no native kernels: {error}"
    return (
        f"{library.instruction_set().decode()} kernels, {library.num_threads()} threads, "
        f"{library.path}"
    )
