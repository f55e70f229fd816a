"""The kernels under AddressSanitizer and, in a session of its own, ThreadSanitizer."""

import pytest
from emulator import run_sanitized
from test_faults import broken_sources


def test_kernels_stay_within_their_memory(tmp_path):
    """Every kernel is clean, and a slot past the pool is told with the kernel's line."""
    result = run_sanitized("address", tmp_path, "--past-pool")
    assert result.stdout == "kernels are clean\n", result.stderr
    assert "heap-buffer-overflow" in result.stderr
    assert "decode_cores.cuh" in result.stderr


@pytest.mark.tsan
def test_kernels_have_no_races(tmp_path):
    result = run_sanitized("thread", tmp_path)
    assert result.stdout == "kernels are clean\n", result.stderr
    assert "WARNING" not in result.stderr


@pytest.mark.tsan
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("decode_mma.cuh", "      warp_sync();\n", ""),
        ("prefill.cuh", "block_sync();  // tile i has come", "// tile i has come"),
        ("decode_split.cuh", "run() const {\n    block_sync();\n", "run() const {\n"),
        (
            "decode_split.cuh",
            "merge_blocks() const {\n    block_sync();\n",
            "merge_blocks() const {\n",
        ),
        ("sample.cuh", "    warp_sync();\n", ""),
    ],
)
def test_missing_barriers_are_races(tmp_path, file, right, wrong):
    sources = broken_sources({file: (right, wrong)}, tmp_path / "csrc")
    result = run_sanitized("thread", tmp_path, kernels=sources)
    assert "WARNING: ThreadSanitizer: data race" in result.stderr
    assert file in result.stderr
