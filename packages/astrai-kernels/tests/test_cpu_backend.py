"""The native CPU backend serves any step, and a request alike in any batch."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrai_kernels import (
    AttentionBackend,
    BackendFallbackWarning,
    BackendUnavailableError,
    CpuBackend,
    ShapeError,
)
from astrai_kernels.testing import (
    AttentionBackendContract,
    check_attend,
    make_rotary,
    make_step,
    reference_attend,
)


@pytest.mark.usefixtures("kernels")
class TestCpuBackend(AttentionBackendContract):
    def create_backend(self) -> AttentionBackend:
        return CpuBackend(strict=True)


@st.composite
def rows(draw):
    """Lengths and query counts of a step's rows, idle ones among them."""
    lengths, counts = [], []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(0, 700))
        is_decode = draw(st.booleans())
        lengths.append(length)
        counts.append(1 if is_decode else draw(st.integers(0, min(length, 80))))
    return lengths, counts


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=rows(),
    heads=st.sampled_from([(2, 2), (9, 3), (4, 1), (5, 1), (14, 2), (16, 2)]),
    head_dim=st.sampled_from([8, 24, 40]),
    shuffled=st.booleans(),
    rotated=st.booleans(),
    window=st.none() | st.integers(1, 600),
)
def test_any_step_matches_the_reference(kernels, rows, heads, head_dim, shuffled, rotated, window):
    step = make_step(*rows, heads=heads, head_dim=head_dim, shuffled=shuffled)
    rotary = make_rotary(step) if rotated else None
    check_attend(CpuBackend(strict=True), step, rotary=rotary, window=window)


def alone(step, row):
    """The step with one of its rows only."""
    cache = step.cache
    begin, end = cache.qo_indptr[row].item(), cache.qo_indptr[row + 1].item()
    tokens = slice(begin, end)
    return replace(
        step,
        q=step.q[tokens],
        k=step.k[tokens],
        v=step.v[tokens],
        cache=replace(
            cache,
            req_pool_indices=cache.req_pool_indices[row : row + 1],
            seq_lens=cache.seq_lens[row : row + 1],
            out_cache_loc=cache.out_cache_loc[tokens],
            qo_indptr=torch.tensor([0, end - begin], dtype=torch.int32),
        ),
    ), tokens


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_row_does_not_depend_on_those_beside_it(kernels, num_threads):
    kernels.set_num_threads(num_threads)
    step = make_step([1500, 20, 700, 90], [1, 1, 40, 7], shuffled=True)
    together = step.attend(CpuBackend(strict=True))
    kernels.set_num_threads(2)
    for row in range(4):
        one, tokens = alone(step, row)
        assert torch.equal(one.attend(CpuBackend(strict=True)), together[tokens])


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("window", [None, 100, 600])
def test_a_prompt_does_not_depend_on_how_it_is_cut(kernels, num_threads, window):
    """Nor on the threads: with more of them more of its pieces are shared, keys included."""
    kernels.set_num_threads(1)
    whole = make_step([1200], [1200], shuffled=True)
    expected = whole.attend(CpuBackend(strict=True), window=window)
    kernels.set_num_threads(num_threads)
    begin = 0
    for end in (2, 65, 70, 199, 300, 520, 524, 1180, 1200):
        cache = replace(
            whole.cache,
            seq_lens=torch.tensor([end]),
            out_cache_loc=whole.cache.out_cache_loc[begin:end],
            qo_indptr=torch.tensor([0, end - begin]),
        )
        q, k, v = (x[begin:end] for x in (whole.q, whole.k, whole.v))
        out = CpuBackend(strict=True).attend(q, k, v, cache, 0, window=window)
        assert torch.equal(out, expected[begin:end])
        begin = end


@pytest.mark.usefixtures("kernels")
def test_slots_and_layers_outside_the_cache_are_refused():
    step, backend = make_step([12, 9], [1, 4]), CpuBackend(strict=True)
    table = step.cache.req_to_token.clone()
    table[step.cache.req_pool_indices[0], 3] = 99999
    for misfit in (
        replace(step, cache=replace(step.cache, req_to_token=table)),
        replace(step, cache=replace(step.cache, req_to_token=-1 - table)),
        replace(step, cache=replace(step.cache, out_cache_loc=step.cache.out_cache_loc + 9999)),
        replace(step, cache=replace(step.cache, req_pool_indices=torch.tensor([0, 4]))),
        replace(step, cache=replace(step.cache, req_pool_indices=torch.tensor([0]))),
        replace(step, cache=replace(step.cache, qo_indptr=torch.tensor([0, 6, 5]))),
    ):
        with pytest.raises(ShapeError):
            misfit.attend(backend)
    for layer_id in (-1, 2):
        with pytest.raises(ShapeError, match="2 layers"):
            step.attend(backend, layer_id)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head_dim": 12}, "head_dim must be a multiple of 8"),
        ({"dtype": torch.float64}, "q, k and v must all be"),
        ({"kv_dtype": torch.float64}, "its cache must be float32"),
    ],
)
def test_what_kernels_cannot_serve_is_delegated(options, reason):
    step = make_step([12, 9], [1, 4], **options)
    with pytest.warns(BackendFallbackWarning, match=f"'cpu' falls back .* {reason}"):
        out = step.attend(CpuBackend())
    torch.testing.assert_close(out.double(), reference_attend(step).out, rtol=1e-4, atol=1e-4)
    with pytest.raises(BackendUnavailableError, match=reason):
        step.attend(CpuBackend(strict=True))


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_torch_serves():
    assert CpuBackend.availability(torch.device("cpu")) == "no C++ compiler was found."
    with pytest.warns(BackendFallbackWarning, match="no C"):
        check_attend(CpuBackend(), make_step([12, 9], [1, 4]))


def test_other_devices_are_not_served():
    assert "the device is 'cuda:1'" in CpuBackend.availability(torch.device("cuda:1"))


@pytest.mark.usefixtures("kernels")
def test_threads_may_call_at_once():
    step = make_step([1200, 9], [1, 4])
    expected = step.attend(CpuBackend(strict=True))

    def attend(_):
        return torch.equal(step.attend(CpuBackend(strict=True)), expected)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(attend, range(120)))


FORKED = """
import os
import torch
from astrai_kernels import CpuBackend, set_num_threads
from astrai_kernels.testing import make_step
set_num_threads(3)
step = make_step([600, 9], [1, 4])
expected = step.attend(CpuBackend(strict=True))
child = os.fork()
if child == 0:
    same = torch.equal(step.attend(CpuBackend(strict=True)), expected)
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_has_threads_of_its_own(kernels):
    result = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
