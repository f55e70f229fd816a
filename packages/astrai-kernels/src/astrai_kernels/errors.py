"""Errors of the kernels package.

KernelsError
├── BackendUnavailableError   the backend asked for, strictly, cannot run here
├── NativeUnavailableError    the native CPU kernels cannot be built or loaded
├── CudaUnavailableError      the CUDA kernels cannot be built or loaded
│   └── KernelCompileError    the compiler refuses one of them
├── KernelLaunchError         the driver refuses to start one
├── EnvironmentValueError     an ``ASTRAI_*`` variable has a value that means nothing
├── ShapeError                tensors that do not fit together
└── PositionError             a position outside the rotary table

BackendFallbackWarning        a chosen backend cannot serve; another one does
KernelCacheWarning            compiled kernels cannot be kept

Every message is a sentence that says what is wrong and what to do.
"""


class KernelsError(Exception):
    """Root of all errors raised by this package."""


class BackendUnavailableError(KernelsError):
    """The backend asked for with ``strict=True`` cannot run here.

    Args:
        name: the backend's name.
        reason: why it cannot run, as a sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"The attention backend {name!r} cannot run here: {reason} "
            "Choose another backend, or drop strict=True to fall back."
        )
        self.name = name
        self.reason = reason


class NativeUnavailableError(KernelsError):
    """The native CPU kernels cannot be built or loaded; the message is a sentence saying why."""


class CudaUnavailableError(KernelsError):
    """The CUDA kernels cannot be built or loaded; the message is a sentence saying why."""


class KernelCompileError(CudaUnavailableError):
    """NVRTC refuses a kernel.

    Args:
        kernel: its name.
        log: what the compiler said.
    """

    def __init__(self, kernel: str, log: str) -> None:
        super().__init__(f"NVRTC cannot compile the kernel {kernel!r}:\n{log}")
        self.kernel = kernel
        self.log = log


class KernelLaunchError(KernelsError):
    """The driver refuses to start a kernel; the message names the kernel and the status."""


class EnvironmentValueError(KernelsError, ValueError):
    """An environment variable has a value that means nothing; the message lists those that do."""


class ShapeError(KernelsError, ValueError):
    """Tensors that do not fit together; the message names the shapes."""


class PositionError(KernelsError, IndexError):
    """A position lies outside the rotary table."""


class BackendFallbackWarning(UserWarning):
    """A chosen backend cannot serve; the message says why and which backend does."""


class KernelCacheWarning(UserWarning):
    """Compiled kernels cannot be kept, so every process compiles them; the message says why."""
