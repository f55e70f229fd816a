"""What NVRTC makes of the kernels: registers, spills, and the instructions that matter."""

import importlib
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "astrai_kernels" / "cuda" / "csrc"
ARCHS = (80, 90, 100, 120)
HEAD_DIMS = (64, 96, 128, 256)
HALVES = ("bf16", "f16")
# Groups that differ in their code: few heads, one tile of heads, several.
DECODE_GROUPS = (1, 2, 3, 4, 8, 20)
PREFILL_GROUPS = (1, 3, 4, 7, 8)


def limit_of(kernel, head_dim, group):
    """Registers that let enough warps run at once to keep the memory or the tensor cores busy."""
    if kernel == "DECODE":  # on CUDA cores three blocks, on tensor cores two
        return 168 if group <= (2 if head_dim == 96 else 3) else 255
    return {"ROTARY": 48, "PREFILL": 255, "SAMPLE": 128}[kernel]


ALL = [
    *(("ROTARY", dtype, head_dim, 1) for dtype, head_dim in product((*HALVES, "f32"), HEAD_DIMS)),
    *(("DECODE", *rest) for rest in product(HALVES, HEAD_DIMS, DECODE_GROUPS)),
    *(("PREFILL", *rest) for rest in product(HALVES, HEAD_DIMS, PREFILL_GROUPS)),
    ("SAMPLE", "f32", 0, 1),
]
FEW = [
    ("ROTARY", "bf16", 64, 1),
    ("DECODE", "bf16", 64, 3),
    ("DECODE", "bf16", 128, 8),
    ("PREFILL", "bf16", 128, 4),
]


@pytest.fixture(scope="module")
def nvrtc():
    try:
        module = importlib.import_module("cuda.bindings.nvrtc")
        module.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"there is no NVRTC: {str(error).splitlines()[0]}")
    return module


def checked(result):
    status, *values = result
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else values


def compile_kernel(nvrtc, arch, kernel, dtype, head_dim, group):
    """The machine code of a specialisation, and what the assembler says of it."""
    sources = {path.name: path.read_bytes() for path in SOURCES.iterdir()}
    entry, names = sources.pop("entry.cu"), [name.encode() for name in sources]
    program = checked(
        nvrtc.nvrtcCreateProgram(entry, b"entry.cu", len(names), list(sources.values()), names)
    )
    options = (
        *(f"--gpu-architecture=sm_{arch}", "--std=c++17", "-default-device"),
        *("--ptxas-options=-v", f"-DASTRAI_KERNEL=ASTRAI_{kernel}", f"-DASTRAI_GROUP={group}"),
        *(f"-DASTRAI_DTYPE=astrai::{dtype}", f"-DASTRAI_HEAD_DIM={head_dim}"),
    )
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    assert int(status) == 0, log.decode()
    code = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code, log.decode()


def check(nvrtc, arch, kernel, dtype, head_dim, group):
    log = compile_kernel(nvrtc, arch, kernel, dtype, head_dim, group)[1]
    registers, spilled = (
        int(re.search(pattern, log)[1])
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores")
    )
    assert spilled == 0
    assert registers <= limit_of(kernel, head_dim, group)
    assert "warning" not in log


@pytest.mark.parametrize("specialisation", FEW, ids=str)
def test_typical_kernels_compile_without_spills(nvrtc, specialisation):
    check(nvrtc, 90, *specialisation)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("specialisation", ALL, ids=str)
def test_all_kernels_compile_without_spills(nvrtc, arch, specialisation):
    check(nvrtc, arch, *specialisation)


def instructions(code, folder):
    """How often each instruction appears; those that move 16 bytes are counted with ``.128``."""
    (folder / "code.cubin").write_bytes(code)
    (tool,) = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu*/bin/nvdisasm")
    listing = subprocess.run(
        [tool, "-c", folder / "code.cubin"], capture_output=True, text=True, check=True
    ).stdout
    lines = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", re.MULTILINE)
    names = lines.findall(listing)
    return Counter(name.split(".")[0] + (".128" if ".128" in name else "") for name in names)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("specialisation", "wanted"),
    [
        (("ROTARY", "bf16", 128, 1), {"LDG.128": 4, "STG.128": 4}),
        # 8 vectors of K and V in flight, and those of three heads' q.
        (("DECODE", "bf16", 128, 3), {"LDG.128": 14}),
        (("DECODE", "bf16", 128, 8), {"LDGSTS.128": 16, "LDSM": 16, "HMMA": 32}),
        (("PREFILL", "bf16", 128, 4), {"LDGSTS.128": 4, "LDSM": 48, "HMMA": 128, "STG.128": 1}),
    ],
    ids=str,
)
def test_kernels_use_the_instructions_they_are_built_on(
    nvrtc, tmp_path, arch, specialisation, wanted
):
    found = instructions(compile_kernel(nvrtc, arch, *specialisation)[0], tmp_path)
    assert {name: count for name, count in wanted.items() if found[name] < count} == {}
    assert found["LDL"] + found["STL"] == 0
