import torch
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.sampling.draw import draw, uniforms

seeds = st.integers(-(2**63), 2**63 - 1)


MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    """SplitMix64's finaliser, on Python's own integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@given(st.lists(st.tuples(seeds, st.integers(0, 127), st.integers(0, 2**20)), max_size=5))
def test_each_number_is_a_pure_function_of_its_own_counter(counters):
    numbers = uniforms(counters)
    assert numbers.shape == (len(counters),)
    for number, (seed, index, position) in zip(numbers, counters, strict=True):
        state = mix((seed + GOLDEN) & MASK)
        for counter in (index, position):
            state = mix((state ^ (counter * GOLDEN + GOLDEN)) & MASK)
        assert 0.0 <= number < 1.0
        assert number == (state >> 11) * 2.0**-53


def test_neighbouring_counters_give_unrelated_numbers():
    """Seeds, choices and positions that differ by one must not share a stream."""
    grid = uniforms([(s, i, p) for s in range(20) for i in range(5) for p in range(50)])
    assert len(set(grid)) == len(grid)
    values = torch.from_numpy(grid)
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005
    along = values.reshape(100, 50)
    pairs = torch.stack([along[:, :-1].flatten(), along[:, 1:].flatten()])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.05


def test_draw_inverts_the_cumulated_probabilities():
    probs = torch.tensor([[0.2, 0.5, 0.3]]).repeat(5, 1)
    targets = torch.tensor([0.0, 0.19, 0.21, 0.71, 0.999999], dtype=torch.float64)
    assert draw(probs, targets).tolist() == [0, 0, 1, 2, 2]


@given(st.floats(0, 1, exclude_max=True))
def test_a_column_without_probability_is_never_drawn(u):
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw(probs, torch.tensor([u], dtype=torch.float64)).item() in (1, 3)


def test_unnormalised_rows_are_fine():
    probs = torch.tensor([[2.0, 6.0]])
    assert draw(probs, torch.tensor([0.2], dtype=torch.float64)).item() == 0
    assert draw(probs, torch.tensor([0.3], dtype=torch.float64)).item() == 1
