"""What NVRTC makes of the kernels: registers, spills, and the instructions that matter."""

import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch

from astrai_kernels.cuda import compiler
from astrai_kernels.cuda.attention import HEAD_DIMS, decode_launch, prefill_launch
from astrai_kernels.cuda.bindings import nvrtc
from astrai_kernels.cuda.compiler import Target
from astrai_kernels.cuda.rotary import rotary_launch
from astrai_kernels.cuda.sampling import SAMPLE_LAUNCH
from astrai_kernels.errors import CudaUnavailableError

ARCHS = (80, 90, 100, 120)
HALVES = (torch.bfloat16, torch.float16)
BF16 = torch.bfloat16
# Groups whose code differs: those on CUDA cores, eight heads or less, sixteen, several blocks.
DECODE_GROUPS = (1, 2, 3, 4, 8, 16, 20)
PREFILL_GROUPS = (1, 3, 4, 7, 8)
ALL = [
    *(rotary_launch(*shape) for shape in product((*HALVES, torch.float32), HEAD_DIMS)),
    *(decode_launch(*shape) for shape in product(HALVES, HEAD_DIMS, DECODE_GROUPS)),
    *(prefill_launch(*shape) for shape in product(HALVES, HEAD_DIMS, PREFILL_GROUPS)),
    SAMPLE_LAUNCH,
]
FEW = [
    rotary_launch(BF16, 64),
    decode_launch(BF16, 64, 3),
    decode_launch(BF16, 128, 8),
    prefill_launch(BF16, 128, 4),
]
NUM_REGISTERS = 65536
MAX_REGISTERS_OF_A_THREAD = 255


def name_of(launch):
    return launch.kernel.name


@pytest.fixture(autouse=True)
def _needs_nvrtc():
    try:
        nvrtc()
    except CudaUnavailableError as error:
        pytest.skip(str(error))


def blocks_wanted(name):
    """What each kernel demands as ``blocks_at_once``, to keep memory or tensor cores busy."""
    kernel, *rest = name.split("_")
    if kernel == "decode":  # each warp on CUDA cores has less memory under way
        head_dim, group = map(int, rest[1:])
        return 3 if group <= (2 if head_dim == 96 else 3) else 2
    return {"rotary": 8, "prefill": 2, "sample": 1}[kernel]


def compile_kernel(launch, arch):
    """A kernel's machine code, and what the assembler says of it."""
    options = (*compiler._options(launch.kernel, Target(arch)), "--ptxas-options=-v")
    return compiler.compile_source(launch.kernel.name, options)


def check(launch, arch):
    log = compile_kernel(launch, arch)[1]
    registers, spilled = (
        int(re.search(pattern, log)[1])
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores")
    )
    limit = NUM_REGISTERS // launch.block.threads // blocks_wanted(launch.kernel.name)
    assert spilled == 0
    assert registers <= min(limit, MAX_REGISTERS_OF_A_THREAD)
    assert "warning" not in log


@pytest.mark.parametrize("launch", FEW, ids=name_of)
def test_typical_kernels_compile_without_spills(launch):
    check(launch, 90)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("launch", ALL, ids=name_of)
def test_all_kernels_compile_without_spills(launch, arch):
    check(launch, arch)


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
    ("launch", "wanted"),
    [
        (rotary_launch(BF16, 128), {"LDG.128": 4, "STG.128": 4}),
        # 8 vectors of K and V under way, and those of three heads' q.
        (decode_launch(BF16, 128, 3), {"LDG.128": 14}),
        (decode_launch(BF16, 128, 8), {"LDGSTS.128": 16, "LDSM": 16, "HMMA": 16, "MOVM": 2}),
        (prefill_launch(BF16, 128, 4), {"LDGSTS.128": 4, "LDSM": 48, "HMMA": 128, "STG.128": 1}),
    ],
    ids=lambda value: value.kernel.name if hasattr(value, "kernel") else "",
)
def test_kernels_use_the_instructions_they_are_built_on(tmp_path, launch, wanted, arch):
    found = instructions(compile_kernel(launch, arch)[0], tmp_path)
    assert {name: count for name, count in wanted.items() if found[name] < count} == {}
    assert found["LDL"] + found["STL"] == 0
