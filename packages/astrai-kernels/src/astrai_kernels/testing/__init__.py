"""Tests every attention backend must pass, and what they are made of.

Only `AttentionBackendContract` needs pytest, which is imported with it.

A backend's test file needs only this::

    class TestMyBackend(AttentionBackendContract):
        def create_backend(self) -> AttentionBackend:
            return MyBackend()
"""

from typing import TYPE_CHECKING, Any

from astrai_kernels.testing.check import check_attend
from astrai_kernels.testing.reference import Expected, reference_attend
from astrai_kernels.testing.steps import Step, StepCache, make_rotary, make_step

if TYPE_CHECKING:
    from astrai_kernels.testing.contract import AttentionBackendContract

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


def __getattr__(name: str) -> Any:
    if name == "AttentionBackendContract":
        from astrai_kernels.testing.contract import AttentionBackendContract  # noqa: PLC0415

        return AttentionBackendContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
