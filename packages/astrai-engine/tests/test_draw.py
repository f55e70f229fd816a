import torch
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.sampling.draw import draw, uniform

seeds = st.integers(-(2**63), 2**63 - 1)


@given(seed=seeds, index=st.integers(0, 127), position=st.integers(0, 2**20))
def test_uniform_is_a_pure_function_in_range(seed, index, position):
    value = uniform(seed, index, position)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, index, position)


def test_neighbouring_counters_give_unrelated_numbers():
    """Seeds, choices and positions that differ by one must not share a stream."""
    grid = [uniform(s, i, p) for s in range(20) for i in range(5) for p in range(50)]
    assert len(set(grid)) == len(grid)
    values = torch.tensor(grid, dtype=torch.float64)
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005
    along = values.reshape(100, 50)
    pairs = torch.stack([along[:, :-1].flatten(), along[:, 1:].flatten()])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.05


def test_draw_inverts_the_cumulated_probabilities():
    probs = torch.tensor([[0.2, 0.5, 0.3]]).repeat(5, 1)
    uniforms = torch.tensor([0.0, 0.19, 0.21, 0.71, 0.999999], dtype=torch.float64)
    assert draw(probs, uniforms).tolist() == [0, 0, 1, 2, 2]


@given(st.floats(0, 1, exclude_max=True))
def test_a_column_without_probability_is_never_drawn(u):
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw(probs, torch.tensor([u], dtype=torch.float64)).item() in (1, 3)


def test_unnormalised_rows_are_fine():
    probs = torch.tensor([[2.0, 6.0]])
    assert draw(probs, torch.tensor([0.2], dtype=torch.float64)).item() == 0
    assert draw(probs, torch.tensor([0.3], dtype=torch.float64)).item() == 1
