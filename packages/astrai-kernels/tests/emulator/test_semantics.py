"""The emulator itself: what no kernel may do is noticed, and fragments are as documented."""

import ctypes
import re

import pytest
import torch
from emulator import HERE, Copies, Emulator, EmulatorError, Order, build, require_compiler


class Params(ctypes.Structure):
    _fields_ = [("out", ctypes.c_void_p)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    require_compiler()
    return Emulator(build(tmp_path_factory.mktemp("semantics"), name="semantics"))


def run(library, kernel, order=Order()):  # noqa: B008 - frozen
    out = torch.arange(64, dtype=torch.int32)
    library.launch(kernel, Params(out.data_ptr()), (1, 1, 1), order)
    return out


@pytest.mark.parametrize(
    ("kernel", "message", "code"),
    [
        (
            "absent_from_barrier",
            "deadlock: thread 0 of .* waits in block_sync",
            "< 40) block_sync()",
        ),
        ("absent_from_shuffle", "deadlock: thread 0 of .* waits in shuffle_xor", "shuffle_xor("),
        ("two_barriers", "block_sync meets block_sync", "block_sync()"),
        ("misaligned_copy", "copy_async of a misaligned address", "copy_async_16(shared + 4"),
        ("copy_past_the_end", "copy_async outside shared memory", "4 * thread_index() + 4"),
        ("copy_not_waited_for", "a thread ends with copies on their way", "copy_async_4(shared, p"),
    ],
)
def test_misdeeds_are_told_with_their_place(library, kernel, message, code):
    with pytest.raises(EmulatorError, match=message) as raised:
        run(library, kernel)
    line = int(re.search(r"semantics\.cpp:(\d+)", str(raised.value))[1])
    assert code in (HERE / "semantics.cpp").read_text().splitlines()[line - 1]


def test_shared_memory_begins_as_nan(library):
    assert (run(library, "unwritten_memory") == -1).all()


def test_a_copy_may_come_late_or_at_once(library):
    late = run(library, "copy_read_too_early", Order(copies=Copies.LAZY))
    at_once = run(library, "copy_read_too_early", Order(copies=Copies.EAGER))
    assert (late == -1).all()
    assert torch.equal(at_once, torch.arange(64, dtype=torch.int32))


def test_matrices_are_transposed_alike_in_memory_and_in_registers(library):
    in_registers, in_memory = run(library, "transposed_twice").view(torch.int16).view(2, -1)
    matrix = torch.arange(192, 256, dtype=torch.int16).view(8, 8)  # the last of four
    assert torch.equal(in_registers, matrix.T.flatten())
    assert torch.equal(in_memory, matrix.T.flatten())


def test_an_error_leaves_the_machine_usable(library):
    with pytest.raises(EmulatorError):
        run(library, "two_barriers")
    assert (run(library, "unwritten_memory") == -1).all()
