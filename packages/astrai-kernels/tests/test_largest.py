import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrai_kernels.ops import largest, likeliest

pytestmark = pytest.mark.usefixtures("implementation")


def random_logits(rows, vocab, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocab", [128 * 200, 128 * 384, 1000, 128, 96])
@pytest.mark.parametrize("k", [1, 2, 50, 96])
def test_it_equals_topk(vocab, k):
    logits = random_logits(5, vocab)
    values, ids = largest(logits, k)
    expected = logits.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_served_too(dtype):
    logits = random_logits(3, 128 * 200).to(dtype)
    values, ids = largest(logits, 5)
    assert values.dtype == dtype
    assert torch.equal(values, logits.topk(5).values)
    assert torch.equal(logits.gather(-1, ids), values)


def test_rows_of_a_wider_tensor_are_read_where_they_are():
    logits = random_logits(4, 2000)[:, 100:1900]
    values, ids = largest(logits, 7)
    assert torch.equal(values, logits.topk(7).values)
    assert torch.equal(ids, logits.topk(7).indices)


def test_no_rows_give_no_rows():
    values, ids = largest(torch.empty(0, 128 * 300), 3)
    assert values.shape == ids.shape == (0, 3)
    assert likeliest(torch.empty(0, 128 * 300)) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [96, 1800])
def test_the_likeliest_is_the_largest_as_lists(dtype, width):
    logits = random_logits(4, 2000).to(dtype)[:, 100 : 100 + width]
    logits[1, [5, 40]] = 50.0
    values, ids = likeliest(logits)
    assert (values, ids) == tuple(each.squeeze(-1).tolist() for each in largest(logits, 1))
    assert (values[1], ids[1]) == (50.0, 5)
    logits[2, 7] = math.nan
    values, ids = likeliest(logits)
    assert math.isnan(values[2])
    assert ids[2] == 7


def test_all_of_them_may_lie_in_one_block():
    logits = random_logits(2, 128 * 300)
    logits[:, 640:690] += 100
    values, ids = largest(logits, 50)
    assert torch.equal(values, logits.topk(50).values)
    assert set(ids[0].tolist()) == set(range(640, 690))


def test_of_equal_values_the_first_is_the_largest():
    logits = torch.zeros(1, 128 * 64)
    assert largest(logits, 1)[1].item() == 0
    logits[0, [700, 701, 5000]] = 1.0
    assert largest(logits, 1)[1].item() == 700


@pytest.mark.parametrize("column", [20_000, 128 * 200 - 1])
def test_nan_and_infinity_are_not_overlooked(column):
    logits = random_logits(3, 128 * 200)
    logits[0, column] = math.nan
    logits[1, column] = math.inf
    logits[2] = -math.inf
    for k in (1, 20):
        values, ids = largest(logits, k)
        assert math.isnan(values[0, 0])
        assert (values[1, 0], ids[1, 0]) == (math.inf, column)
        assert values[2, 0] == -math.inf


@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, math.inf, -math.inf, math.nan]),
        min_size=1,
        max_size=700,
    ),
    st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_native_order_is_that_of_a_stable_sort(implementation, numbers, data):
    if implementation == "torch":
        pytest.skip("torch's own order of equal values is not defined.")
    k = data.draw(st.integers(1, len(numbers)))
    ids = largest(torch.tensor([numbers]), k)[1][0].tolist()
    is_nan = [math.isnan(number) for number in numbers]
    expected = sorted(
        range(len(numbers)), key=lambda i: (not is_nan[i], 0 if is_nan[i] else -numbers[i], i)
    )
    assert ids == expected[:k]
