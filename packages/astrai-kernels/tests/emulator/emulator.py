"""Builds the emulator with the kernels in it, and launches them."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any

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
    compiler = shutil.which("g++")
    assert compiler is not None
    library = to / f"{name}-{sanitizer}.so"
    extra = SANITIZERS[sanitizer] if sanitizer else ()
    sources = (f"-I{kernels}", f"-I{HERE}", str(HERE / f"{name}.cpp"))
    subprocess.run([compiler, *FLAGS, *extra, *sources, "-o", str(library)], check=True)
    return library


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
