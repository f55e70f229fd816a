"""Compiles the native kernels once for each machine and keeps the result.

A library is kept under a name made of everything that decides what it is: sources, compiler,
flags and processor. So no library is ever stale, and different machines can share a folder.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astrai_kernels import _env
from astrai_kernels.errors import NativeUnavailableError

SOURCES = Path(__file__).with_name("csrc")
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno")
_NATIVE = ("-O3", "-march=native")
_PORTABLE = ("-O2", "-DASTRAI_PORTABLE")
# GCC would regroup the sums of the inner loops and run out of registers: a third slower.
_GCC_ONLY = ("-fno-tree-reassoc", "-Wno-psabi")
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Toolchain:
    """A compiler and how it is called.

    Attributes:
        path: its executable.
        version: what it says it is.
        flags: given to every compilation.
    """

    path: str
    version: str
    flags: tuple[str, ...]


def find_toolchain(*, portable: bool = False) -> Toolchain:
    """Find a C++ compiler.

    Args:
        portable: use no instruction set beyond the compiler's default.

    Raises:
        NativeUnavailableError: there is none.
    """
    if sys.platform == "win32":
        raise NativeUnavailableError("native CPU kernels are built on Linux and macOS only.")
    path = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if path is None:
        raise NativeUnavailableError(
            f"no C++ compiler was found; install one of {', '.join(_COMPILERS)}."
        )
    version = _run([path, "--version"]).splitlines()[0]
    specific = () if "clang" in version.lower() else _GCC_ONLY
    return Toolchain(path, version, _FLAGS + specific + (_PORTABLE if portable else _NATIVE))


def compiled_library(*, portable: bool = False) -> Path:
    """The shared library for this machine, compiled if it is not there yet.

    Safe to call from many threads and processes at once: one compiles, the others wait for it.

    Args:
        portable: see `find_toolchain`.

    Raises:
        NativeUnavailableError: there is no compiler, or it fails.
    """
    toolchain = find_toolchain(portable=portable)
    folder = _env.cache_dir() / "kernels"
    library = folder / f"cpu-{_fingerprint(toolchain)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _build(toolchain, library)
    except OSError as error:
        raise NativeUnavailableError(
            f"{folder} cannot be written ({error.strerror}); set ASTRAI_CACHE_DIR."
        ) from error
    return library


def _fingerprint(toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    for part in (toolchain.version, *toolchain.flags, platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _processor() -> str:
    """The processor's instruction sets, or the best name of it there is."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return " ".join(sorted(line.partition(":")[2].split()))
    except OSError:
        pass
    return platform.processor()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the system releases that of one which dies."""
    import fcntl  # noqa: PLC0415 - not there on Windows, where nothing is built

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(toolchain: Toolchain, library: Path) -> None:
    """Compile all sources at once and put the library in its place in one move."""
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        units = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(work) / f"{unit.stem}.o" for unit in units]
        commands = [
            [toolchain.path, *toolchain.flags, "-c", str(unit), "-o", str(target)]
            for unit, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as workers:
            list(workers.map(_run, commands))
        linked = Path(work) / library.name
        _run([toolchain.path, "-shared", *map(str, objects), "-o", str(linked), "-pthread"])
        linked.replace(library)


def _run(command: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{command[0]} cannot be run ({error}).") from error
    if result.returncode:
        first = next(iter(result.stderr.splitlines()), f"status {result.returncode}")
        raise NativeUnavailableError(f"{command[0]} cannot compile the kernels ({first}).")
    return result.stdout
