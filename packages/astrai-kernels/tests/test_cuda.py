import warnings

import pytest
import torch

from astrai_kernels import (
    AttentionBackend,
    BackendFallbackWarning,
    BackendUnavailableError,
    CudaBackend,
)
from astrai_kernels.testing import AttentionBackendContract, make_step


@pytest.mark.filterwarnings("ignore::astrai_kernels.BackendFallbackWarning")
class TestCudaBackend(AttentionBackendContract):
    def create_backend(self) -> AttentionBackend:
        return CudaBackend()


@pytest.mark.parametrize(
    ("device", "has_gpu", "reason"),
    [
        ("cpu", True, "need an NVIDIA GPU, and the device is 'cpu'"),
        ("cuda", False, "need an NVIDIA GPU, and torch finds none"),
        ("cuda:1", True, "has no CUDA kernels"),
    ],
)
def test_availability_gives_the_nearest_reason(monkeypatch, device, has_gpu, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert reason in CudaBackend.availability(torch.device(device))


def test_the_fallback_is_reported_once_with_its_reason():
    step = make_step([3], [1])
    with pytest.warns(BackendFallbackWarning, match="'cuda' falls back .* NVIDIA GPU"):
        step.attend(CudaBackend())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step.attend(CudaBackend())


def test_calls_are_served_although_the_report_was_an_error():
    step, backend = make_step([3], [1]), CudaBackend()
    with pytest.raises(BackendFallbackWarning):
        step.attend(backend)
    assert step.attend(backend).isfinite().all()


def test_a_strict_backend_refuses_to_delegate():
    step = make_step([3], [1])
    before = step.cache.k_buffer.clone()
    with pytest.raises(BackendUnavailableError, match="'cuda' cannot run here: its kernels need"):
        step.attend(CudaBackend(strict=True))
    torch.testing.assert_close(step.cache.k_buffer, before, equal_nan=True)
