"""The compiled kernels as Python functions: signatures, and the structures they share with C.

The functions take addresses and trust them; `astrai_kernels.cpu.weights`,
`astrai_kernels.cpu.pack` and `astrai_kernels.backends.cpu` check everything before they call.
"""

import ctypes
import threading
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from astrai_kernels import _env
from astrai_kernels.cpu.compiler import compiled_library
from astrai_kernels.cpu.cores import physical_cores
from astrai_kernels.errors import NativeUnavailableError


class WeightStruct(ctypes.Structure):
    """``Weight`` of csrc/weights.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("format", c_int32),
        ("is_paired", c_int32),
        ("activation_bits", c_int32),
        ("reserved", c_int32),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("tiles", c_void_p),
        ("bias", c_void_p),
    ]


class AttentionStruct(ctypes.Structure):
    """``Attention`` of csrc/attention.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("q", "k", "v", "out")),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, c_int64) for name in ("q_head_stride", "k_head_stride", "v_head_stride")),
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_int64) for name in ("key_stride", "value_stride")),
        *((name, c_int64) for name in ("key_head_stride", "value_head_stride")),
        *((name, c_void_p) for name in ("table", "table_rows", "lengths", "query_starts")),
        *((name, c_void_p) for name in ("slots", "rotary")),
        *((name, c_int64) for name in ("table_stride", "batch", "tokens")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "rotary_dim", "window")),
        *((name, c_void_p) for name in ("query_norm", "key_norm")),
        *((name, c_float) for name in ("norm_eps", "scale", "softcap")),
        *((name, c_int32) for name in ("type", "kv_type", "is_interleaved")),
    ]


class LayerStruct(ctypes.Structure):
    """``Layer`` of csrc/stack.cpp."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, POINTER(WeightStruct)) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm")),
        *((name, c_void_p) for name in ("output_norm", "down_norm", "query_norm", "key_norm")),
        ("window", c_int64),
        *((name, c_float) for name in ("eps", "scale", "softcap")),
        *((name, c_int32) for name in ("activation", "rotation")),
    ]


class StackStruct(ctypes.Structure):
    """``Stack`` of csrc/stack.cpp."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("layers", POINTER(LayerStruct)),
        ("num_layers", c_int64),
        ("attention", POINTER(AttentionStruct)),
        *((name, c_int64) for name in ("key_layer_bytes", "value_layer_bytes")),
        ("rotations", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("hidden", "qkv", "attended", "inner", "added")),
        ("wanted", POINTER(c_int64)),
        ("num_wanted", c_int64),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "astrai_set_num_threads": (None, [c_int32]),
    "astrai_num_threads": (c_int32, []),
    "astrai_instruction_set": (ctypes.c_char_p, []),
    "astrai_packed_bytes": (c_int64, [c_int32, c_int64, c_int64, c_int32]),
    "astrai_pack": (None, [c_int32, c_int32, c_void_p, c_int64, c_int64, c_int32, c_void_p]),
    "astrai_unpack_rows": (c_int32, [POINTER(WeightStruct), c_void_p, c_int64, c_void_p]),
    "astrai_linear": (
        None,
        [POINTER(WeightStruct), c_void_p, c_int64, c_void_p, c_float, c_void_p, c_int32],
    ),
    "astrai_largest_outputs": (
        None,
        [POINTER(WeightStruct), c_void_p, c_int64, c_void_p, c_float, c_void_p, c_void_p],
    ),
    "astrai_add_normed": (None, [c_void_p, c_void_p, c_float, c_int64, c_int64, c_void_p]),
    "astrai_attend": (None, [POINTER(AttentionStruct)]),
    "astrai_check_step": (c_int64, [POINTER(AttentionStruct), *[c_int64] * 3]),
    "astrai_largest": (None, [c_void_p, *[c_int64] * 4, c_void_p, c_void_p]),
    "astrai_run_stack": (None, [POINTER(StackStruct)]),
}


class CpuLibrary:
    """A loaded library.

    Args:
        path: the compiled library.

    Attributes:
        path: the compiled library.

    Raises:
        NativeUnavailableError: it cannot be loaded here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailableError(
                f"the compiled kernels cannot be loaded ({error}); delete {path}."
            ) from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("astrai_"), function)

    set_num_threads: Any
    num_threads: Any
    instruction_set: Any
    packed_bytes: Any
    pack: Any
    unpack_rows: Any
    linear: Any
    largest_outputs: Any
    add_normed: Any
    attend: Any
    check_step: Any
    largest: Any
    run_stack: Any


# One library a process, as its thread pool is one.
_lock = threading.Lock()
_loaded: CpuLibrary | NativeUnavailableError | None = None


def load_library() -> CpuLibrary:
    """The kernels for this machine; the first call compiles them if need be, and loads them.

    Raises:
        NativeUnavailableError: they cannot be built or loaded; every later call says the same.
        EnvironmentValueError: ``ASTRAI_NUM_THREADS`` is no number of threads.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            num_threads = _env.num_threads() or physical_cores()
            try:
                _loaded = CpuLibrary(compiled_library())
                _loaded.set_num_threads(num_threads)
            except NativeUnavailableError as error:
                _loaded = error
        if isinstance(_loaded, NativeUnavailableError):
            raise _loaded
        return _loaded


def loaded_library() -> CpuLibrary | None:
    """The kernels if something has loaded them already; this never compiles anything."""
    return _loaded if isinstance(_loaded, CpuLibrary) else None


def unavailable_reason() -> str | None:
    """Why the kernels cannot be used here, as a sentence; None when they can."""
    if isinstance(_loaded, CpuLibrary):
        return None
    try:
        load_library()
    except NativeUnavailableError as error:
        return str(error)
    return None


def set_num_threads(count: int) -> None:
    """Set how many threads the native kernels use, the caller's among them.

    Args:
        count: at least 1.

    Raises:
        NativeUnavailableError: there are no kernels.
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"The kernels need at least 1 thread, not {count}.")
    load_library().set_num_threads(count)
