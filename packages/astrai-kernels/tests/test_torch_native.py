import gc
import weakref
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_kernels import AttentionBackend, TorchNativeBackend
from astrai_kernels.backends import torch_native
from astrai_kernels.testing import (
    AttentionBackendContract,
    check_attend,
    make_rotary,
    make_step,
    reference_attend,
)


class TestTorchNativeBackend(AttentionBackendContract):
    def create_backend(self) -> AttentionBackend:
        return TorchNativeBackend()


@pytest.mark.cuda
class TestTorchNativeBackendOnCuda(AttentionBackendContract):
    device = "cuda"
    reads_indices = False

    def create_backend(self) -> AttentionBackend:
        return TorchNativeBackend()


@st.composite
def rows(draw):
    """Lengths and query counts of a step's rows, idle ones among them."""
    lengths, counts = [], []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(0, 300))
        is_decode = draw(st.booleans())
        lengths.append(length)
        counts.append(1 if is_decode else draw(st.integers(0, min(length, 40))))
    return lengths, counts


@settings(max_examples=60, deadline=None)
@given(
    rows=rows(),
    heads=st.sampled_from([(2, 2), (9, 3), (4, 1)]),
    shuffled=st.booleans(),
    rotated=st.booleans(),
    window=st.none() | st.integers(1, 64),
)
def test_any_step_matches_the_reference(rows, heads, shuffled, rotated, window):
    step = make_step(*rows, heads=heads, head_dim=8, shuffled=shuffled)
    rotary = make_rotary(step) if rotated else None
    check_attend(TorchNativeBackend(), step, rotary=rotary, window=window)


def test_chunked_prefill_and_decode_give_what_one_prefill_gives():
    whole = make_step([40], [40], shuffled=True)
    expected = reference_attend(whole).out
    backend, begin = TorchNativeBackend(), 0
    for end in (1, 17, 18, 33, 40):
        cache = replace(
            whole.cache,
            seq_lens=torch.tensor([end]),
            out_cache_loc=whole.cache.out_cache_loc[begin:end],
            qo_indptr=torch.tensor([0, end - begin]),
        )
        q, k, v = (x[begin:end] for x in (whole.q, whole.k, whole.v))
        out = backend.attend(q, k, v, cache, 0)
        torch.testing.assert_close(out.double(), expected[begin:end], rtol=2e-5, atol=2e-5)
        begin = end


def test_rows_pass_nothing_on_to_each_other():
    """A row whose own K/V are NaN spoils its own output alone, padding or not."""
    step = make_step([9, 4, 30, 6], [1, 1, 1, 2])
    clean = step.attend(TorchNativeBackend())
    step.v[1] = float("nan")
    spoiled = step.attend(TorchNativeBackend())
    assert spoiled[1].isnan().all()
    keep = [0, 2, 3, 4]
    assert torch.equal(spoiled[keep], clean[keep])


@pytest.fixture
def planned(monkeypatch):
    """Counts the plans made."""
    calls = []
    plan_step = torch_native.plan_step

    def counting(*arguments):
        calls.append(arguments)
        return plan_step(*arguments)

    monkeypatch.setattr(torch_native, "plan_step", counting)
    return calls


def test_a_step_is_planned_once_for_all_its_layers(planned):
    backend, step = TorchNativeBackend(), make_step([5, 9], [1, 2])
    for layer_id in (0, 1, 0):
        step.attend(backend, layer_id)
    assert len(planned) == 1
    step.attend(backend, window=4)
    assert len(planned) == 2


def test_a_new_cache_object_is_a_new_step(planned):
    backend, step = TorchNativeBackend(), make_step([5, 9], [1, 2])
    step.attend(backend)
    step = replace(step, cache=replace(step.cache, seq_lens=torch.tensor([4, 8])))
    check_attend(backend, step)
    assert len(planned) == 2


def test_a_backend_keeps_no_cache_alive():
    backend, step = TorchNativeBackend(), make_step([5], [1])
    step.attend(backend)
    cache = weakref.ref(step.cache)
    del step
    gc.collect()
    assert cache() is None


def test_a_cache_may_be_of_a_type_without_weak_references(planned):
    backend, step = TorchNativeBackend(), make_step([5], [1])
    fields = {field: getattr(step.cache, field) for field in step.cache.__dataclass_fields__}
    slotted = namedtuple("slotted", fields)(**fields)
    for layer_id in (0, 1):
        check_attend(backend, replace(step, cache=slotted), layer_id)
    assert len(planned) == 1


def test_no_gradient_enters_the_cache():
    step = make_step([5], [2])
    for x in (step.q, step.k, step.v):
        x.requires_grad_()
    out = step.attend(TorchNativeBackend())
    assert not out.requires_grad
    assert not step.cache.k_buffer.requires_grad
