import asyncio
import threading

import pytest
import torch

from astrai_kernels import (
    ATTN_BACKEND,
    BackendChoice,
    BackendUnavailableError,
    CpuBackend,
    CudaBackend,
    EnvironmentValueError,
    TorchNativeBackend,
    attn_backend,
    requested_backend,
    select_backend,
)


@pytest.fixture(autouse=True)
def no_backend_in_environment(monkeypatch):
    monkeypatch.delenv("ASTRAI_BACKEND", raising=False)


@pytest.mark.usefixtures("no_kernels")
def test_automatic_selection_is_torch_and_says_why():
    selection = select_backend("cpu")
    assert isinstance(selection.backend, TorchNativeBackend)
    assert selection.name == "torch_native"
    assert {rejection.name for rejection in selection.rejected} == {"cuda", "cpu"}
    assert all(rejection.reason.endswith(".") for rejection in selection.rejected)


def test_automatic_selection_prefers_native_kernels(kernels):
    selection = select_backend("cpu")
    assert isinstance(selection.backend, CpuBackend)
    assert selection.name == "cpu"
    assert [rejection.name for rejection in selection.rejected] == ["cuda"]


def test_each_selection_has_a_backend_of_its_own():
    assert select_backend("cpu").backend is not select_backend("cpu").backend


@pytest.mark.parametrize("name", ["torch_native", " Torch_Native "])
def test_environment_chooses(monkeypatch, name):
    monkeypatch.setenv("ASTRAI_BACKEND", name)
    selection = select_backend("cpu")
    assert selection.name == "torch_native"
    assert selection.rejected == ()


def test_environment_choosing_cuda_gives_the_delegating_backend(monkeypatch):
    monkeypatch.setenv("ASTRAI_BACKEND", "cuda")
    selection = select_backend("cpu")
    assert isinstance(selection.backend, CudaBackend)
    assert [rejection.name for rejection in selection.rejected] == ["cuda"]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("value", ["", "auto", "AUTO"])
def test_environment_may_ask_for_automatic(monkeypatch, value):
    monkeypatch.setenv("ASTRAI_BACKEND", value)
    assert len(select_backend("cpu").rejected) == 2


def test_a_bad_environment_value_is_named_with_those_accepted(monkeypatch):
    monkeypatch.setenv("ASTRAI_BACKEND", "flash")
    with pytest.raises(
        EnvironmentValueError,
        match="ASTRAI_BACKEND must be one of auto, torch_native, cuda, cpu, not 'flash'",
    ):
        select_backend("cpu")


def test_context_beats_environment_and_argument_beats_context(monkeypatch):
    monkeypatch.setenv("ASTRAI_BACKEND", "flash")
    with attn_backend(ATTN_BACKEND.CUDA):
        assert select_backend("cpu").name == "cuda"
        choice = BackendChoice(ATTN_BACKEND.TORCH_NATIVE)
        assert select_backend("cpu", choice=choice).name == "torch_native"


@pytest.mark.usefixtures("no_kernels")
def test_choosing_native_cpu_without_kernels_gives_the_delegating_backend():
    with attn_backend(ATTN_BACKEND.CPU):
        selection = select_backend(torch.device("cpu"))
    assert isinstance(selection.backend, CpuBackend)
    assert selection.name == "cpu"
    assert [rejection.name for rejection in selection.rejected] == ["cpu"]


def test_choosing_native_cpu_gives_it(kernels):
    with attn_backend(ATTN_BACKEND.CPU, strict=True):
        selection = select_backend("cpu")
    assert isinstance(selection.backend, CpuBackend)
    assert selection.rejected == ()


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("backend", [ATTN_BACKEND.CUDA, ATTN_BACKEND.CPU])
def test_a_strict_choice_raises_with_the_reason(backend):
    with attn_backend(backend, strict=True), pytest.raises(BackendUnavailableError) as caught:
        select_backend("cpu")
    assert caught.value.name == backend.value
    assert caught.value.reason in str(caught.value)


def test_a_strict_choice_that_can_serve_is_served():
    with attn_backend(ATTN_BACKEND.TORCH_NATIVE, strict=True) as choice:
        assert choice == requested_backend() == BackendChoice(ATTN_BACKEND.TORCH_NATIVE, True)
        assert select_backend("cpu").name == "torch_native"


def test_contexts_nest_and_end_with_their_block_even_by_an_exception():
    assert requested_backend() is None
    with attn_backend(ATTN_BACKEND.CUDA):
        with pytest.raises(KeyError), attn_backend(ATTN_BACKEND.TORCH_NATIVE):
            raise KeyError
        assert requested_backend() == BackendChoice(ATTN_BACKEND.CUDA)
    assert requested_backend() is None


def test_a_choice_does_not_reach_other_threads():
    seen = []
    with attn_backend(ATTN_BACKEND.CUDA):
        thread = threading.Thread(target=lambda: seen.append(requested_backend()))
        thread.start()
        thread.join()
    assert seen == [None]


async def test_a_choice_belongs_to_its_task():
    both_chosen = asyncio.Barrier(2)

    async def choose(backend):
        with attn_backend(backend):
            await both_chosen.wait()
            return requested_backend().backend

    chosen = await asyncio.gather(choose(ATTN_BACKEND.CUDA), choose(ATTN_BACKEND.TORCH_NATIVE))
    assert chosen == [ATTN_BACKEND.CUDA, ATTN_BACKEND.TORCH_NATIVE]
