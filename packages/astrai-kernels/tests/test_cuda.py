import warnings
from dataclasses import replace

import pytest
import torch

from astrai_kernels import (
    AttentionBackend,
    AttentionShape,
    BackendFallbackWarning,
    BackendUnavailableError,
    CudaBackend,
    KernelCompileError,
    KernelLaunchError,
    TorchNativeBackend,
)
from astrai_kernels.backends import cuda as backend_module
from astrai_kernels.cuda import attention, launcher, rotary
from astrai_kernels.testing import AttentionBackendContract, check_attend, make_step

SHAPE = AttentionShape(
    device=torch.device("cuda", 0),
    dtype=torch.bfloat16,
    kv_dtype=torch.bfloat16,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_batch_size=4,
)


@pytest.mark.filterwarnings("ignore::astrai_kernels.BackendFallbackWarning")
class TestCudaBackend(AttentionBackendContract):
    """Delegating everything."""

    def create_backend(self) -> AttentionBackend:
        return CudaBackend()


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::astrai_kernels.BackendFallbackWarning")
class TestCudaBackendOnCuda(AttentionBackendContract):
    device = "cuda"
    dtype = torch.bfloat16
    reads_indices = False

    def create_backend(self) -> AttentionBackend:
        return CudaBackend()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", attention.HEAD_DIMS)
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (16, 2), (20, 1)])
def test_kernels_serve_what_they_say(dtype, head_dim, heads):
    backend = CudaBackend(strict=True)
    for lengths, counts in ([1, 0, 70, 700], [1] * 4), ([300, 40, 9], [200, 1, 9]):
        check_attend(
            backend,
            make_step(
                lengths,
                counts,
                heads=heads,
                head_dim=head_dim,
                dtype=dtype,
                shuffled=True,
                device="cuda",
            ),
        )


@pytest.mark.parametrize(
    ("device", "has_gpu", "reason"),
    [
        ("cpu", True, "need an NVIDIA GPU, and the device is 'cpu'"),
        ("cuda", False, "need an NVIDIA GPU, and torch finds none"),
    ],
)
def test_availability_gives_the_nearest_reason(monkeypatch, device, has_gpu, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert reason in CudaBackend.availability(torch.device(device))


@pytest.fixture
def gpu(fake_driver, monkeypatch):
    """A GPU that torch and the driver both find, and whose kernels do nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launcher, "_gpu_reason", lambda device: None)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, **rest: zeros(*shape, **rest))
    return fake_driver


def test_an_old_gpu_is_told_from_a_missing_driver(monkeypatch, fake_driver):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reasons = launcher._gpu_reason
    monkeypatch.setattr(launcher, "_gpu_reason", reasons.__wrapped__)
    assert CudaBackend.availability(device) is None

    def missing():
        raise KernelCompileError("x", "y") from None

    monkeypatch.setattr(launcher, "driver", missing)
    assert "cannot compile the kernel 'x'" in CudaBackend.availability(device)


def test_the_fallback_is_reported_once_with_its_reason():
    step = make_step([3], [1])
    with pytest.warns(BackendFallbackWarning, match="'cuda' falls back .* NVIDIA GPU"):
        step.attend(CudaBackend())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step.attend(CudaBackend())


def test_calls_are_served_although_the_report_was_an_error():
    step, backend = make_step([3], [1]), CudaBackend()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BackendFallbackWarning):
            step.attend(backend)
        assert step.attend(backend).isfinite().all()


def test_a_strict_backend_refuses_to_delegate():
    step = make_step([3], [1])
    before = step.cache.k_buffer.clone()
    with pytest.raises(BackendUnavailableError, match="'cuda' cannot run here: its kernels need"):
        step.attend(CudaBackend(strict=True))
    torch.testing.assert_close(step.cache.k_buffer, before, equal_nan=True)


def served(**options):
    """A step that kernels could serve, were it on a GPU."""
    options = {"dtype": torch.bfloat16, "shuffled": True, **options}
    return make_step([12, 9], [1, 1], **options)


def cache_with(step, **fields):
    return replace(step, cache=replace(step.cache, **fields))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (served(dtype=torch.float32), r"both be bfloat16 .* are torch.float32 and torch.float32"),
        (served(kv_dtype=torch.float16), r"are torch.bfloat16 and torch.float16"),
        (served(head_dim=80), r"head_dim must be one of \(64, 96, 128, 256\), and is 80"),
        (
            cache_with(served(), seq_lens=torch.tensor([12, 9], dtype=torch.int32)),
            r"seq_lens must be contiguous and of torch.int64, and is of torch.int32",
        ),
        (
            cache_with(served(), req_to_token=served().cache.req_to_token.long()),
            r"req_to_token must be contiguous and of torch.int32",
        ),
        (
            cache_with(served(), out_cache_loc=served().cache.out_cache_loc.int()),
            r"the slots must be contiguous and torch.int64",
        ),
        (
            cache_with(served(), v_buffer=served().cache.v_buffer[:, ::2][:, :11]),
            r"keys and the values of the cache must lie alike",
        ),
    ],
)
def test_what_kernels_cannot_serve_is_delegated_with_its_reason(monkeypatch, step, reason):
    monkeypatch.setattr(backend_module, "unavailable_reason", lambda device: None)
    with pytest.raises(BackendUnavailableError, match=reason):
        step.attend(CudaBackend(strict=True))
    if "alike" not in reason:
        with pytest.warns(BackendFallbackWarning, match=reason):
            check_attend(CudaBackend(), step)


def test_a_kernel_that_does_not_compile_is_reported_once_and_delegated(monkeypatch):
    def refuse(launch, device):
        raise KernelCompileError(launch.kernel.name, "entry.cu(7): error")

    monkeypatch.setattr(backend_module, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(rotary, "loaded_kernel", refuse)
    backend = CudaBackend()
    with pytest.warns(BackendFallbackWarning, match=r"'rotary_bf16_64':\nentry.cu\(7\): error"):
        check_attend(backend, served())
    check_attend(backend, served())


def test_warming_up_loads_every_kernel_of_a_model(gpu):
    backend = CudaBackend(strict=True)
    assert backend.warmup(SHAPE) is None
    assert [launch.kernel.name for launch, _ in launcher._loaded] == [
        "rotary_bf16_64",
        "decode_bf16_64_3",
        "prefill_bf16_64_3",
    ]
    assert len(backend._counters[0]) == 4 * 3


def test_warming_up_says_why_a_graph_cannot_hold_the_model(gpu):
    shape = replace(SHAPE, head_dim=80)
    with pytest.warns(BackendFallbackWarning, match="head_dim must be one of"):
        assert "head_dim must be one of" in CudaBackend().warmup(shape)
    with pytest.raises(BackendUnavailableError, match="head_dim must be one of"):
        CudaBackend(strict=True).warmup(shape)
    gpu.failing.add("cuLibraryLoadData")
    with pytest.warns(BackendFallbackWarning, match="load the kernel 'rotary_bf16_64'"):
        assert "CUDA_ERROR_MADE_UP" in CudaBackend().warmup(SHAPE)
    assert "plans every step anew" in TorchNativeBackend().warmup(SHAPE)


def test_a_launch_that_fails_fails_the_step(gpu, monkeypatch):
    monkeypatch.setattr(backend_module, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    gpu.failing.add("cuLaunchKernel")
    with pytest.raises(KernelLaunchError, match="rotary_bf16_64"):
        served().attend(CudaBackend())
