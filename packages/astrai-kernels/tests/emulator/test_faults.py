"""Kernels broken on purpose: each fault has to show under some order of threads."""

import shutil

import pytest
from emulator import ALL_ORDERS, KERNELS, Emulator, EmulatorError, build, require_compiler
from kernel_calls import DTYPES, Kernels, Options, error, expected_attention, written_step

FAULTS = {
    "a barrier is missing": {
        "prefill.cuh": ("block_sync();  // tile i has come", "// tile i has come"),
        "decode_split.cuh": ("run() const {\n    block_sync();\n", "run() const {\n"),
    },
    "a wait is too weak": {
        "prefill.cuh": (
            "copy_wait<0>();\n      block_sync();",
            "copy_wait<1>();\n      block_sync();",
        ),
        "decode_mma.cuh": ("copy_wait<num_stages - 2>", "copy_wait<num_stages - 1>"),
    },
}
CASES = [
    ("a barrier is missing", "prefill_bf16_64_3"),
    ("a barrier is missing", "decode_bf16_64_3"),
    ("a wait is too weak", "prefill_bf16_64_3"),
    ("a wait is too weak", "decode_f16_64_8"),
]


def broken_sources(changes, to):
    """A copy of the kernels' sources in which some text is replaced."""
    shutil.copytree(KERNELS, to)
    for file, (right, wrong) in changes.items():
        text = (to / file).read_text()
        assert text.count(right) == 1
        (to / file).write_text(text.replace(right, wrong))
    return to


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The emulators with faulty kernels, by fault."""
    require_compiler()
    emulators = {}
    for fault, changes in FAULTS.items():
        folder = tmp_path_factory.mktemp("faults")
        sources = broken_sources(changes, folder / "csrc")
        emulators[fault] = Emulator(build(folder, kernels=sources, name="faults"))
    return emulators


def shows(emulator, name, order):
    """Whether a kernel's result is wrong, or the emulator complains."""
    kernel, dtype, head_dim, group = name.split("_")
    q_len = 1 if kernel == "decode" else 40
    step = step_for(dtype, int(head_dim), int(group), q_len)
    kernels = Kernels(emulator, order)
    try:
        out = getattr(kernels, kernel)(name, step, options=Options())
    except EmulatorError:
        return True
    return not error(out, expected_attention(step, Options())) < 1e-2


def step_for(dtype, head_dim, group, q_len):
    return written_step([300], [q_len], heads=(group, 1), head_dim=head_dim, dtype=DTYPES[dtype])


@pytest.mark.parametrize(("fault", "name"), CASES)
def test_faults_show(broken, emulator, fault, name):
    assert any(shows(broken[fault], name, order) for order in ALL_ORDERS)
    assert not any(shows(emulator, name, order) for order in ALL_ORDERS)
