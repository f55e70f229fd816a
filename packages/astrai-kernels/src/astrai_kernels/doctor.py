"""A report of which attention backend serves this machine, and why the others do not."""

from importlib.metadata import version

import torch

from astrai_kernels.backends.selection import choice_in_force, select_backend
from astrai_kernels.cpu.library import load_library
from astrai_kernels.errors import NativeUnavailableError


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
    ]
    return "".join(f"{label:<11}{text}\n" for label, text in lines)


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
