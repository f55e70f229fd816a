"""The whole CUDA backend on tensors of the CPU: its own launches, run by the emulator."""

from dataclasses import replace

import pytest
import torch
from emulator import Order

from astrai_kernels import CudaBackend, CudaUnavailableError
from astrai_kernels.backends import cuda as backend_module
from astrai_kernels.cuda import attention, rotary
from astrai_kernels.testing import check_attend, make_rotary, make_step


class EmulatedKernel:
    """Stands in for a `LoadedKernel`; launched with the bytes that a GPU would get."""

    def __init__(self, emulator, launch):
        self.emulator, self.name = emulator, launch.kernel.name
        try:
            instance = emulator.instance(self.name)
        except ValueError as error:
            raise CudaUnavailableError(f"{self.name} is not in the emulator.") from error
        assert (instance.threads, instance.shared_bytes) == (
            launch.block.threads,
            launch.block.shared_bytes,
        )

    def run(self, grid, parameters):
        if 0 not in grid:
            self.emulator.launch(self.name, parameters, grid, Order())


@pytest.fixture(autouse=True)
def launched(emulator, monkeypatch):
    """The names of kernels launched."""
    names = []

    def loaded_kernel(launch, device):
        names.append(launch.kernel.name)
        return EmulatedKernel(emulator, launch)

    for module in (attention, rotary):
        monkeypatch.setattr(module, "loaded_kernel", loaded_kernel)
    monkeypatch.setattr(attention, "num_processors", lambda device: 8)
    monkeypatch.setattr(backend_module, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return names


def make(lengths, counts, **options):
    return make_step(lengths, counts, dtype=torch.bfloat16, shuffled=True, **options)


@pytest.fixture
def backend():
    return CudaBackend(strict=True)


def equal_rows(step):
    """The same step as decode steps are bound: without ``qo_indptr``."""
    loc = step.cache.out_cache_loc.view(len(step.cache.seq_lens), -1)
    return replace(step, cache=replace(step.cache, qo_indptr=None, out_cache_loc=loc))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_decode_step_is_two_launches(backend, launched, interleaved):
    step = equal_rows(make([1, 9, 140, 300], [1] * 4))
    check_attend(backend, step, rotary=make_rotary(step, interleaved=interleaved))
    assert launched == ["rotary_bf16_64", "decode_bf16_64_3"]


def test_scratch_serves_step_after_step(backend):
    for lengths in ([300, 520], [7, 300, 2, 900], [300, 520]):
        check_attend(backend, equal_rows(make(lengths, [1] * len(lengths))))
    assert [len(counters) for counters in backend._counters] == [6, 12]
    assert not any(counters.any() for counters in backend._counters)


def test_scratch_made_while_a_graph_is_captured_is_that_graphs_alone(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check_attend(backend, equal_rows(make([300, 520], [1, 1])))
    assert backend._counters == []


@pytest.mark.parametrize("window", [None, 50, 2**32 + 5])
def test_rows_of_one_and_of_several_tokens_share_a_step(backend, launched, window):
    step = make([33, 6, 200, 0, 150], [1, 6, 70, 2, 1])
    check_attend(backend, step, rotary=make_rotary(step), window=window, scale=0.2)
    assert launched == ["rotary_bf16_64", "decode_bf16_64_3", "prefill_bf16_64_3"]


def test_equal_rows_of_several_tokens_need_one_launch_more_than_rotation(backend, launched):
    check_attend(backend, equal_rows(make([12, 9], [3, 3])))
    assert launched == ["rotary_bf16_64", "prefill_bf16_64_3"]


def test_each_layer_has_its_own_pool(backend):
    step = equal_rows(make([12, 9], [1, 1]))
    for layer_id in (0, 1):
        check_attend(backend, step, layer_id)


@pytest.mark.parametrize("rotated", [False, True])
def test_views_of_a_fused_projection_are_served(backend, rotated):
    step = make([12, 9, 60], [1, 4, 1])
    fused = torch.cat((step.q, step.k, step.v), 1)
    views = replace(step, q=fused[:, :9], k=fused[:, 9:12], v=fused[:, 12:])
    check_attend(backend, views, rotary=make_rotary(step) if rotated else None)


def test_tensors_at_odd_addresses_are_served(backend):
    step = equal_rows(make([12, 9], [1, 1]))
    odd = torch.empty(step.q.numel() + 1, dtype=torch.bfloat16)[1:].view(step.q.shape)
    check_attend(backend, replace(step, q=odd.copy_(step.q)))


def test_padded_rows_write_and_read_nothing(backend):
    """A batch of 3 in a graph of 4: the last row has no keys and no slot."""
    step = equal_rows(make([12, 9, 30, 0], [1] * 4))
    loc = step.cache.out_cache_loc.clone()
    loc[3] = -1
    step = replace(step, cache=replace(step.cache, out_cache_loc=loc))
    check_attend(backend, step, rotary=make_rotary(step))
