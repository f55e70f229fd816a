"""A backend's result beside the reference."""

from typing import Any

import torch

from astrai_kernels.backends.base import AttentionBackend
from astrai_kernels.testing.reference import reference_attend
from astrai_kernels.testing.steps import Step

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a result may be from the float64 reference, by the coarsest dtype on its way."""


def check_attend(backend: AttentionBackend, step: Step, layer_id: int = 0, **options: Any) -> None:
    """Compare a backend with `reference_attend`: its output, and the cache it leaves.

    Args:
        backend: the backend under test; it writes to the step's cache.
        step: the inputs.
        layer_id: the layer to attend.
        options: further arguments of `AttentionBackend.attend`.
    """
    expected = reference_attend(step, layer_id, **options)
    out = step.attend(backend, layer_id, **options)
    assert out.dtype == step.q.dtype
    assert out.is_contiguous()
    tolerance = max(TOLERANCE[step.q.dtype], TOLERANCE[step.cache.k_buffer.dtype])
    torch.testing.assert_close(out.double(), expected.out, rtol=tolerance, atol=tolerance)
    # Untouched slots must be untouched, NaN and all.
    for after, wanted in (
        (step.cache.k_buffer, expected.k_buffer),
        (step.cache.v_buffer, expected.v_buffer),
    ):
        torch.testing.assert_close(after, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
