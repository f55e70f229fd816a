"""Kernels loaded on a GPU, and their launch on torch's current stream."""

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from astrai_kernels.cuda.bindings import CallError, check, driver
from astrai_kernels.cuda.compiler import Specialization, compiled_kernel, target_for
from astrai_kernels.cuda.geometry import BlockShape
from astrai_kernels.errors import CudaUnavailableError, KernelLaunchError

ENTRY_POINT = b"astrai_entry"
_FREE_SHARED_BYTES = 48 * 1024
"""Beyond this a kernel has to be allowed its dynamic shared memory."""

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """How a kernel is started, besides its grid and its parameters.

    Attributes:
        kernel: what runs.
        block: its threads and shared memory.
    """

    kernel: Specialization
    block: BlockShape


class LoadedKernel:
    """A kernel on one GPU.

    Args:
        launch: how it is started.
        device: the GPU's number.

    Raises:
        CudaUnavailableError: the kernel cannot be compiled or loaded here.
        KernelLaunchError: a graph is being captured, which loading would break.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise KernelLaunchError(
                f"The kernel {launch.kernel.name!r} is not loaded yet, and cannot be while a graph "
                "is captured; call the backend's warmup() before."
            )
        self._api = driver()
        self._launch = launch
        self._device = device
        self._code = compiled_kernel(launch.kernel, target_for(_arch(device)))
        try:
            with torch.cuda.device(device):
                _bind_thread(self._api, device)
                self._function = self._load()
        except CallError as error:
            raise CudaUnavailableError(
                f"the driver cannot load the kernel {launch.kernel.name!r} ({error}); "
                "it may be older than the compiler: update it."
            ) from error

    def run(self, grid: Grid, parameters: ctypes.Structure) -> None:
        """Start the kernel on torch's current stream, and return at once.

        Args:
            grid: blocks in each direction; where one is 0 nothing runs.
            parameters: the kernel's one argument; copied before this returns.

        Raises:
            KernelLaunchError: the driver refuses.
        """
        if 0 in grid:
            return
        arguments = ctypes.c_void_p(ctypes.addressof(parameters))
        name, block = self._launch.kernel.name, self._launch.block
        with torch.cuda.device(self._device):
            _bind_thread(self._api, self._device)
            (status,) = self._api.cuLaunchKernel(
                self._function,
                *grid,
                *(block.threads, 1, 1),
                block.shared_bytes,
                torch._C._cuda_getCurrentRawStream(self._device),
                ctypes.addressof(arguments),
                0,
            )
        if int(status) != 0:
            raise KernelLaunchError(
                f"The driver cannot start the kernel {name!r} ({status.name}); its grid is {grid}, "
                f"its block {block.threads} threads and {block.shared_bytes} bytes of shared "
                "memory."
            )

    def _load(self) -> Any:
        # The library must live as long as the function, and is never unloaded.
        api = self._api
        self._library = check(api.cuLibraryLoadData(self._code, [], [], 0, [], [], 0))
        kernel = check(api.cuLibraryGetKernel(self._library, ENTRY_POINT))
        shared_bytes = self._launch.block.shared_bytes
        if shared_bytes > _FREE_SHARED_BYTES:
            limit = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu = check(api.cuDeviceGet(self._device))
            check(api.cuKernelSetAttribute(limit, shared_bytes, kernel, gpu))
        return check(api.cuKernelGetFunction(kernel))


_lock = threading.Lock()
_loaded: dict[tuple[Launch, int], LoadedKernel | CudaUnavailableError] = {}
_thread = threading.local()


def loaded_kernel(launch: Launch, device: int) -> LoadedKernel:
    """A kernel on a GPU; the first call compiles it if need be, and loads it.

    Args:
        launch: how it is started.
        device: the GPU's number.

    Raises:
        CudaUnavailableError: it cannot be; every later call says the same.
        KernelLaunchError: it is not loaded, and a graph is being captured.
    """
    found = _loaded.get((launch, device))
    if found is None:
        with _lock:
            found = _loaded.get((launch, device)) or _load(launch, device)
            _loaded[launch, device] = found
    if isinstance(found, CudaUnavailableError):
        raise found
    return found


def unavailable_reason(device: torch.device) -> str | None:
    """Why no kernel can run on a device, as a sentence; None when some can."""
    if device.type != "cuda":
        return f"its kernels need an NVIDIA GPU, and the device is {str(device)!r}."
    if not torch.cuda.is_available():
        return "its kernels need an NVIDIA GPU, and torch finds none."
    if torch.version.hip is not None:
        return "its kernels need an NVIDIA GPU, and this torch is built for AMD's."
    return _gpu_reason(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _gpu_reason(device: int) -> str | None:
    try:
        driver()
        target_for(_arch(device))
    except CudaUnavailableError as error:
        return str(error)
    return None


@cache
def num_processors(device: int) -> int:
    """Streaming multiprocessors of a GPU."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _load(launch: Launch, device: int) -> LoadedKernel | CudaUnavailableError:
    try:
        return LoadedKernel(launch, device)
    except CudaUnavailableError as error:
        return error


def _arch(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _bind_thread(api: Any, device: int) -> None:
    """Give a new thread the GPU's context: torch itself does so only once it has to call CUDA."""
    if not getattr(_thread, "is_bound", False):
        gpu = check(api.cuDeviceGet(device))
        check(api.cuCtxSetCurrent(check(api.cuDevicePrimaryCtxRetain(gpu))))
        _thread.is_bound = True
