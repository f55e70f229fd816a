"""The rotary kernel on the emulator: against torch, for each layout and dtype."""

from dataclasses import replace

import pytest
import torch
from kernel_calls import DTYPES

from astrai_kernels.rotary import Rotary, RotaryEmbedding
from astrai_kernels.testing import make_rotary, make_step, reference_attend

CASES = [("f32", 64), ("bf16", 64), ("f16", 96)]
TOLERANCE = {"f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}


def instance(dtype, head_dim):
    return f"rotary_{dtype}_{head_dim}", make_step(
        [12, 9], [1, 4], head_dim=head_dim, dtype=DTYPES[dtype], shuffled=True
    )


def assert_written(step, expected, tolerance):
    for after, wanted in (
        (step.cache.k_buffer, expected.k_buffer),
        (step.cache.v_buffer, expected.v_buffer),
    ):
        torch.testing.assert_close(after, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "head_dim"), CASES)
def test_rotates_and_writes(kernels, dtype, head_dim, interleaved):
    name, step = instance(dtype, head_dim)
    rotary = make_rotary(step, interleaved=interleaved)
    expected = reference_attend(step, rotary=rotary)
    q = kernels.rotary(name, step, rotary)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(q, rotary.apply(step.q), rtol=tolerance, atol=tolerance)
    assert_written(step, expected, tolerance)


@pytest.mark.parametrize(("dtype", "head_dim"), CASES)
def test_copies_exactly_without_angles(kernels, dtype, head_dim):
    name, step = instance(dtype, head_dim)
    expected = reference_attend(step)
    assert torch.equal(kernels.rotary(name, step, None), step.q)
    assert_written(step, expected, 0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotates_the_first_elements_only(kernels, interleaved):
    name, step = instance("f32", 64)
    angles = RotaryEmbedding(16, 32)(step.position_ids)
    rotary = Rotary(angles, interleaved)
    q = kernels.rotary(name, step, rotary)
    torch.testing.assert_close(q[..., :16], rotary.apply(step.q[..., :16]))
    assert torch.equal(q[..., 16:], step.q[..., 16:])


def test_does_not_write_negative_slots(kernels):
    name, step = instance("bf16", 64)
    slots = step.cache.out_cache_loc.clone()
    slots[1::2] = -1
    step = replace(step, cache=replace(step.cache, out_cache_loc=slots))
    expected = reference_attend(step)
    kernels.rotary(name, step, None)
    assert_written(step, expected, 0)


def test_reads_views_of_a_fused_projection(kernels):
    name, step = instance("bf16", 64)
    rotary = make_rotary(step, interleaved=False)
    fused = torch.cat((step.q, step.k, step.v), 1)
    views = replace(step, q=fused[:, :9], k=fused[:, 9:12], v=fused[:, 12:])
    expected = reference_attend(step, rotary=rotary)
    kernels.rotary(name, views, rotary)
    assert_written(step, expected, TOLERANCE["bf16"])
