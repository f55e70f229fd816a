"""The sampling kernel on the emulator: against sorting in float64."""

import math

import numpy as np
import pytest
import torch
from emulator import ORDERS, Order
from kernel_calls import SAMPLE_ROW, Kernels

VOCAB = 3000


@pytest.fixture
def kernels(emulator):
    """In one order of threads: sums of integers are the same in all."""
    return Kernels(emulator, Order())


def uniform(seed, choice, position):
    """The engine's number in [0, 1) for one token, with plain integers."""

    def mix(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    golden = 0x9E3779B97F4A7C15
    state = mix((seed + golden) % 2**64)
    state = mix(state ^ (choice * golden + golden) % 2**64)
    state = mix(state ^ (position * golden + golden) % 2**64)
    return (state >> 11) * 2.0**-53


def expected(logits, row):
    """The token of a row, from whole sorted float64 distributions."""
    row = {"top_k": 0, "min_p": 0.0, "seed": 0, "choice": 0, "position": 0} | SAMPLE_ROW | row
    logits = logits.double().numpy()
    if row["temperature"] < 1e-5 or row["top_k"] == 1 or row["top_p"] == 0:
        return int(logits.argmax())
    by_weight = row["top_p"] < 1 or 0 < row["top_k"] < len(logits)
    order = np.argsort(-logits, kind="stable") if by_weight else np.arange(len(logits))
    if row["top_k"] > 0:
        order = order[: row["top_k"]]
    scaled = logits[order] / row["temperature"]
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    kept = probs >= row["min_p"] * probs.max()
    if by_weight:
        kept &= (probs.cumsum() - probs < row["top_p"]) | (row["top_p"] >= 1)
        kept[0] = True
    cumulated = (probs * kept).cumsum()
    target = uniform(row["seed"], row["choice"], row["position"]) * cumulated[-1]
    return int(order[np.searchsorted(cumulated, target, side="right")])


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 30.0},
        {"top_k": 2},
        {"top_k": 50, "temperature": 0.7},
        {"top_k": VOCAB - 1, "temperature": 2.0},
        {"top_k": VOCAB},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"top_p": 0.999, "temperature": 5.0},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    ],
    ids=str,
)
def test_draws_what_sorting_draws(kernels, parameters):
    logits = 3 * torch.randn(6, VOCAB)
    rows = [parameters | {"seed": seed, "position": 7 * seed} for seed in range(6)]
    assert kernels.sample(logits, rows) == list(map(expected, logits, rows))


def test_each_number_of_the_counter_matters(kernels):
    logits = torch.randn(VOCAB).repeat(5, 1)
    numbers = [
        {},
        {"seed": 2**64 - 1},
        {"choice": 1},
        {"position": 1},
        {"seed": 5, "choice": 3, "position": 2000},
    ]
    tokens = kernels.sample(logits, numbers)
    assert tokens == list(map(expected, logits, numbers))
    assert len(set(tokens)) == len(tokens)


def test_a_row_has_parameters_of_its_own(kernels):
    logits = torch.randn(4, VOCAB)
    rows = [{"temperature": 0.0}, {"top_k": 3, "seed": 1}, {"seed": 2}, {"top_p": 0.5, "seed": 3}]
    together = kernels.sample(logits, rows)
    alone = [kernels.sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(4)]
    assert together == alone == list(map(expected, logits, rows))


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}])
def test_greedy_takes_the_first_of_the_largest(kernels, parameters):
    logits = torch.randn(3, VOCAB)
    logits[0, [70, 2999, 31]] = 9.0
    logits[1] = 0.0
    logits[1, 0] = -0.0
    logits[2, -1] = math.inf
    assert kernels.sample(logits, [parameters] * 3) == [31, 0, VOCAB - 1]


@pytest.mark.parametrize("parameters", [{}, {"top_k": 3}, {"temperature": 0.0}])
def test_tells_rows_without_a_token(kernels, parameters):
    logits = torch.randn(5, VOCAB)
    logits[0, 1234] = math.nan
    logits[1, 5] = -math.nan
    logits[2] = -math.inf
    logits[3] = -math.inf
    logits[3, 77] = -1e30
    logits[4, 8] = math.inf
    assert kernels.sample(logits, [parameters] * 5) == [-1, -1, -2, 77, 8]


@pytest.mark.parametrize("parameters", [{}, {"top_k": 1500}, {"top_p": 0.7001}, {"min_p": 0.5}])
def test_equal_logits_are_told_apart_by_index(kernels, parameters):
    logits = torch.full((4, VOCAB), 1.5)
    rows = [parameters | {"seed": seed} for seed in range(4)]
    assert kernels.sample(logits, rows) == list(map(expected, logits, rows))


def test_forbidden_tokens_are_never_drawn(kernels):
    logits = torch.full((8, VOCAB), -math.inf)
    logits[:, [3, 1999]] = torch.tensor([1.0, 2.0])
    for parameters in ({}, {"top_k": 20}, {"top_p": 0.99}):
        rows = [parameters | {"seed": seed} for seed in range(8)]
        assert kernels.sample(logits, rows) == list(map(expected, logits, rows))


def test_reads_rows_of_a_wider_tensor(kernels):
    wide = torch.randn(2, VOCAB + 5)
    logits = wide[:, 3 : VOCAB + 3]
    rows = [{"seed": 1}, {"seed": 2, "top_k": 9}]
    assert kernels.sample(logits, rows) == list(map(expected, logits, rows))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_order_of_threads_changes_nothing(emulator, order):
    logits = torch.randn(2, 100)
    rows = [{"seed": 1, "min_p": 0.01}, {"top_k": 20, "top_p": 0.8, "min_p": 0.05}]
    tokens = Kernels(emulator, order).sample(logits, rows)
    assert tokens == list(map(expected, logits, rows))
