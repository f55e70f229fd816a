"""Builds the emulator with the kernels in it, and launches them."""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from astrai_kernels.cuda.parameters import parameter_structure

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "astrai_kernels" / "cuda" / "csrc"
# Strict aliasing is off because the kernels look at memory as vectors, as CUDA lets them.
FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-fno-strict-aliasing", "-Wall")
FLAGS += ("-Wextra", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off")
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}


class Schedule(IntEnum):
    """Which thread runs next."""

    IN_ORDER = 0
    REVERSED = 1
    RANDOM = 2
    GREEDY = 3


class Copies(IntEnum):
    """When asynchronous copies happen, between their issue and the wait for them."""

    LAZY = 0
    EAGER = 1
    RANDOM = 2


@dataclass(frozen=True)
class Order:
    """One way to run a launch."""

    schedule: Schedule = Schedule.IN_ORDER
    copies: Copies = Copies.LAZY
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.schedule.name}-{self.copies.name}-{self.seed}".lower()


ORDERS = (
    Order(),
    Order(Schedule.REVERSED, Copies.EAGER),
    Order(Schedule.RANDOM, Copies.RANDOM, seed=1),
    Order(Schedule.GREEDY, Copies.EAGER, seed=2),
)
ALL_ORDERS = tuple(Order(s, c, seed=3) for s, c in product(Schedule, Copies))


class EmulatorError(Exception):
    """A kernel did what no kernel may do."""


class Counts(ctypes.Structure):
    """What happened in one launch."""

    _fields_ = [
        (name, ctypes.c_long)
        for name in (
            "barriers",
            "warp_operations",
            "matrix_products",
            "matrix_loads",
            "bank_conflicts",
        )
    ]


class Instance(ctypes.Structure):
    """A kernel in the library."""

    _fields_ = [
        ("run", ctypes.c_void_p),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
    ]


def require_compiler() -> str:
    """The compiler's path; skips the test where there is none."""
    path = shutil.which("g++")
    if path is None or sys.platform != "linux":
        pytest.skip("the emulator needs g++ on Linux")
    return path


def build(
    to: Path, *, sanitizer: str | None = None, kernels: Path = KERNELS, name: str = "library"
) -> Path:
    """Compile a library of kernels.

    Args:
        to: the folder that the library is put in.
        sanitizer: "address" or "thread".
        kernels: where the kernels' sources are.
        name: of the source in this folder that says which kernels.
    """
    library = to / f"{name}-{sanitizer}.so"
    extra = SANITIZERS[sanitizer] if sanitizer else ()
    sources = (f"-I{kernels}", f"-I{HERE}", str(HERE / f"{name}.cpp"))
    subprocess.run([require_compiler(), *FLAGS, *extra, *sources, "-o", str(library)], check=True)
    return library


def run_sanitized(
    sanitizer: str, folder: Path, *arguments: str, kernels: Path = KERNELS
) -> subprocess.CompletedProcess[str]:
    """Run ``sanitized.py`` in a process that loads a sanitizer first of all."""
    library = build(folder, sanitizer=sanitizer, kernels=kernels, name="sanitized")
    environment = os.environ | {
        "LD_PRELOAD": str(_runtime_of(sanitizer)),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        # A missing barrier means thousands of races, each of which is searched for its history.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "sanitized.py"), str(library), *arguments]
    # ThreadSanitizer needs the address space as it was before kernels randomised it more.
    fixed = ["setarch", "-R"] if sanitizer == "thread" else []
    return subprocess.run(
        [*fixed, *command], env=environment, capture_output=True, text=True, check=False
    )


def _runtime_of(sanitizer: str) -> Path:
    name = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    command = [require_compiler(), f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


class Emulator:
    """The kernels of a library. One launch at a time in a process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.emulator_launch.restype = ctypes.c_bool
        self._library.emulator_error.restype = ctypes.c_char_p
        self._library.emulator_counts.restype = ctypes.POINTER(Counts)

    def instance(self, name: str) -> Instance:
        """A kernel by name."""
        return Instance.in_dll(self._library, name)

    def array(self, name: str, length: int) -> ctypes.Array[ctypes.c_uint32]:
        """An array of numbers in the library."""
        return (ctypes.c_uint32 * length).in_dll(self._library, name)

    def launch(
        self, name: str, params: ctypes.Structure, grid: tuple[int, int, int], order: Order
    ) -> Counts:
        """Run a kernel.

        Raises:
            EmulatorError: it waits forever, diverges, or reaches past its shared memory.
        """
        blocks = (ctypes.c_uint32 * 3)(*grid)
        is_fine = self._library.emulator_launch(
            ctypes.byref(self.instance(name)),
            ctypes.byref(params),
            blocks,
            order.schedule,
            order.copies,
            order.seed,
        )
        if not is_fine:
            raise EmulatorError(self._library.emulator_error().decode())
        return Counts.from_buffer_copy(self._library.emulator_counts().contents)


def pack(structure: str, **fields: Any) -> ctypes.Structure:
    """A parameter structure; tensors and arrays become their addresses."""
    return parameter_structure(structure)(**{name: _word(x) for name, x in fields.items()})


def _word(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else value
