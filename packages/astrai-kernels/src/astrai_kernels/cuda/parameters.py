"""The kernels' parameter structures, read from ``csrc/params.cuh``: they are written down once."""

import ctypes
import re
from functools import cache
from pathlib import Path

_HEADER = Path(__file__).with_name("csrc") / "params.cuh"
_TYPES: dict[str, type] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_STRUCTURE = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  ([\w ]+?)(\*?) (\w+);", re.MULTILINE)


@cache
def parameter_structure(name: str) -> type[ctypes.Structure]:
    """A parameter structure with the layout that compilers give it.

    Args:
        name: ``RotaryParams``, ``DecodeParams``, ``PrefillParams``, ``SampleParams`` or
            ``SampleRow``.

    Returns:
        The structure; pointers are ``c_void_p``, fields left out are zero or null.

    Raises:
        KeyError: there is no such structure.
    """
    body = dict(_STRUCTURE.findall(_HEADER.read_text()))[name]
    fields = [
        (field, ctypes.c_void_p if star else _TYPES[kind])
        for kind, star, field in _FIELD.findall(body)
    ]
    return type(name, (ctypes.Structure,), {"_fields_": fields})
