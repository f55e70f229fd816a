"""Tests every attention backend must pass, and what they are made of; needs pytest.

A backend's test file needs only this::

    class TestMyBackend(AttentionBackendContract):
        def create_backend(self) -> AttentionBackend:
            return MyBackend()
"""

from astrai_kernels.testing.contract import AttentionBackendContract, check_attend
from astrai_kernels.testing.reference import Expected, reference_attend
from astrai_kernels.testing.steps import Step, StepCache, make_rotary, make_step

__all__ = [
    "AttentionBackendContract",
    "Expected",
    "Step",
    "StepCache",
    "check_attend",
    "make_rotary",
    "make_step",
    "reference_attend",
]
