"""Compiles kernels with NVRTC, one specialisation at a time, and keeps the results.

A result is kept under a name made of everything that decides what it is: sources, options and the
compiler's version. So no result is ever stale, and a folder can be shared and copied.
"""

import hashlib
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from astrai_kernels import _env
from astrai_kernels.cuda.bindings import CallError, check, nvrtc
from astrai_kernels.errors import CudaUnavailableError, KernelCacheWarning, KernelCompileError

SOURCES = Path(__file__).with_name("csrc")
ENTRY_SOURCE = "entry.cu"
OLDEST_ARCH = 80
"""Kernels use instructions that came with compute capability 8.0."""

_CHECKSUM_BYTES = hashlib.sha256().digest_size
_OPTIONS = ("--std=c++17", "-default-device")


@dataclass(frozen=True)
class Specialization:
    """One kernel with everything fixed that is known before a launch.

    Attributes:
        name: what it is called in messages and in the cache.
        macros: names and values, all that decides its code.
    """

    name: str
    macros: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Target:
    """What code is made for.

    Attributes:
        arch: compute capability, ten times: 90 is 9.0.
        is_ptx: portable assembly for the driver to finish, in place of machine code.
    """

    arch: int
    is_ptx: bool = False

    @property
    def name(self) -> str:
        """As NVRTC calls it."""
        return f"{'compute' if self.is_ptx else 'sm'}_{self.arch}"


def target_for(arch: int) -> Target:
    """The best code that NVRTC can make for a GPU.

    Args:
        arch: the GPU's compute capability, ten times.

    Returns:
        Machine code; PTX of the newest architecture known, where this NVRTC is older than the GPU.

    Raises:
        CudaUnavailableError: there is no NVRTC, or it makes no code for such a GPU.
    """
    known = [each for each in known_archs() if OLDEST_ARCH <= each <= arch]
    if arch in known:
        return Target(arch)
    if not known:
        raise CudaUnavailableError(
            f"the kernels need compute capability {OLDEST_ARCH / 10}, and this GPU has {arch / 10}."
        )
    return Target(max(known), is_ptx=True)


def compiled_kernel(kernel: Specialization, target: Target) -> bytes:
    """The code of a kernel: from the cache, or compiled and put there.

    Safe to call from many threads and processes at once: an entry appears whole or not at all,
    and one that is damaged is made anew.

    Raises:
        CudaUnavailableError: there is no NVRTC.
        KernelCompileError: NVRTC refuses the kernel.
    """
    options = _options(kernel, target)
    entry = _entry(kernel, target, options)
    code = _read(entry)
    if code is None:
        code = compile_source(kernel.name, options, is_ptx=target.is_ptx)[0]
        _write(entry, code)
    return code


def compile_source(
    name: str, options: tuple[str, ...], *, is_ptx: bool = False
) -> tuple[bytes, str]:
    """Compile the sources of this package, whatever the cache holds.

    Args:
        name: of the kernel, for the message.
        options: of NVRTC.
        is_ptx: the target is PTX.

    Returns:
        The code, and what the compiler said.

    Raises:
        CudaUnavailableError: there is no NVRTC.
        KernelCompileError: NVRTC refuses the kernel.
    """
    library = nvrtc()
    headers = {file: text for file, text in _sources().items() if file != ENTRY_SOURCE}
    names = [file.encode() for file in headers]
    entry = _sources()[ENTRY_SOURCE]
    program = check(
        library.nvrtcCreateProgram(
            entry, ENTRY_SOURCE.encode(), len(names), list(headers.values()), names
        )
    )
    try:
        encoded = [option.encode() for option in options]
        try:
            check(library.nvrtcCompileProgram(program, len(encoded), encoded))
        except CallError as error:
            raise KernelCompileError(name, _log(library, program) or str(error)) from error
        return _code(library, program, is_ptx), _log(library, program)
    finally:
        library.nvrtcDestroyProgram(program)


def compiler_version() -> str:
    """NVRTC's version.

    Raises:
        CudaUnavailableError: there is no NVRTC.
    """
    return ".".join(map(str, check(nvrtc().nvrtcVersion())))


def cached_kernels() -> list[Path]:
    """What the cache holds, whoever put it there."""
    return sorted(kernel_folder().glob("cuda-*"))


def known_archs() -> list[int]:
    """Compute capabilities, ten times, that NVRTC makes machine code for.

    Raises:
        CudaUnavailableError: there is no NVRTC.
    """
    return list(check(nvrtc().nvrtcGetSupportedArchs()))


@cache
def _sources() -> dict[str, bytes]:
    """All sources by name: NVRTC gets them in memory and looks for no file."""
    return {path.name: path.read_bytes() for path in sorted(SOURCES.iterdir())}


def _options(kernel: Specialization, target: Target) -> tuple[str, ...]:
    macros = (f"-D{name}={value}" for name, value in kernel.macros)
    return (f"--gpu-architecture={target.name}", *_OPTIONS, *macros)


def _code(library: Any, program: Any, is_ptx: bool) -> bytes:
    kind = "PTX" if is_ptx else "CUBIN"
    code = bytes(check(getattr(library, f"nvrtcGet{kind}Size")(program)))
    check(getattr(library, f"nvrtcGet{kind}")(program, code))
    return code


def _log(library: Any, program: Any) -> str:
    text = bytes(check(library.nvrtcGetProgramLogSize(program)))
    check(library.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0").decode(errors="replace").strip()


def kernel_folder() -> Path:
    """Where compiled kernels are kept."""
    return _env.cache_dir() / "kernels"


def _entry(kernel: Specialization, target: Target, options: tuple[str, ...]) -> Path:
    digest = hashlib.sha256()
    for part in (compiler_version(), *options):
        digest.update(part.encode() + b"\0")
    for name, text in _sources().items():
        digest.update(name.encode() + b"\0" + text + b"\0")
    kind = "ptx" if target.is_ptx else "cubin"
    return kernel_folder() / f"cuda-{kernel.name}-{target.name}-{digest.hexdigest()[:24]}.{kind}"


def _read(entry: Path) -> bytes | None:
    """An entry's code; None where there is none, or it does not have the checksum at its end."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    code, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return code if hashlib.sha256(code).digest() == checksum else None


def _write(entry: Path, code: bytes) -> None:
    """Keep an entry, put in its place in one move; a folder that cannot be written only costs."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent) as work:
            part = Path(work) / entry.name
            part.write_bytes(code + hashlib.sha256(code).digest())
            part.replace(entry)
    except OSError as error:
        warnings.warn(
            f"{entry.parent} cannot be written ({error.strerror}), so CUDA kernels are compiled "
            "anew by every process; set ASTRAI_CACHE_DIR.",
            KernelCacheWarning,
            stacklevel=2,
        )
