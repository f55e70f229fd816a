"""The strategies against transformers' processors, and at their edges."""

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from astrai_engine.sampling import (
    MinPStrategy,
    SamplingPipeline,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
    sample,
)


def random_logits(rows=5, vocab=97, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def log_probs(*probs):
    return torch.tensor([probs]).log()


def kept(logits):
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_equals_transformers(temperature):
    logits = random_logits()
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    assert torch.equal(TemperatureStrategy(temperature).apply(logits), expected)


@pytest.mark.parametrize("top_k", [1, 2, 50, 97])
def test_top_k_equals_transformers(top_k):
    logits = random_logits()
    logits[0, 3] = logits[0].max()  # a tie at the top
    expected = TopKLogitsWarper(top_k)(None, logits)
    assert torch.equal(TopKStrategy(top_k).apply(logits), expected)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(top_p):
    logits = random_logits()
    expected = TopPLogitsWarper(top_p)(None, logits)
    assert torch.equal(TopPStrategy(top_p).apply(logits), expected)


@pytest.mark.parametrize("min_p", [0.01, 0.2, 1.0])
def test_min_p_equals_transformers(min_p):
    logits = random_logits()
    expected = MinPLogitsWarper(min_p)(None, logits)
    assert torch.equal(MinPStrategy(min_p).apply(logits), expected)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6])
def test_a_temperature_too_small_to_divide_by_keeps_the_maximum(temperature):
    logits = random_logits()
    assert kept(TemperatureStrategy(temperature).apply(logits)) == [
        [int(row.argmax())] for row in logits
    ]


@pytest.mark.parametrize("top_k", [0, -1, 1000])
def test_top_k_off_keeps_everything(top_k):
    """B102."""
    logits = random_logits()
    assert torch.equal(TopKStrategy(top_k).apply(logits), logits)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.49, [0]), (0.51, [0, 1]), (0.79, [0, 1]), (0.81, [0, 1, 2]), (0.0, [0]), (1.0, [0, 1, 2])],
)
def test_top_p_keeps_the_token_that_crosses_and_never_none(top_p, expected):
    """B104, B105."""
    logits = log_probs(0.5, 0.3, 0.2)
    assert kept(TopPStrategy(top_p).apply(logits)) == [expected]


def test_temperature_comes_before_top_p():
    """B106: in this order only the first token is left."""
    pipeline = SamplingPipeline([TemperatureStrategy(0.5), TopPStrategy(0.8)])
    assert kept(pipeline.apply(torch.tensor([[3.0, 2.0, 1.0]]))) == [[0]]


def test_top_p_looks_at_what_top_k_left():
    """B107."""
    pipeline = SamplingPipeline([TopKStrategy(2), TopPStrategy(0.5)])
    assert kept(pipeline.apply(log_probs(0.1, 0.2, 0.3, 0.4))) == [[3]]


def test_parameters_can_differ_by_row():
    logits = random_logits(rows=3)
    mixed = SamplingPipeline(
        [
            TemperatureStrategy(torch.tensor([0.5, 1.0, 2.0])),
            TopKStrategy(torch.tensor([0, 5, 3])),
            TopPStrategy(torch.tensor([0.9, 1.0, 0.5])),
            MinPStrategy(torch.tensor([0.0, 0.1, 0.0])),
        ]
    ).apply(logits)
    alone = [
        SamplingPipeline(
            [TemperatureStrategy(t), TopKStrategy(k), TopPStrategy(p), MinPStrategy(m)]
        ).apply(logits[row : row + 1])
        for row, (t, k, p, m) in enumerate(
            [(0.5, 0, 0.9, 0.0), (1.0, 5, 1.0, 0.1), (2.0, 3, 0.5, 0.0)]
        )
    ]
    assert torch.equal(mixed, torch.cat(alone))


def test_the_input_is_left_as_it_was():
    """B101."""
    logits = random_logits()
    before = logits.clone()
    sample(logits, temperature=0.7, top_k=5, top_p=0.5, min_p=0.1)
    assert torch.equal(logits, before)


def test_sample_draws_what_is_left_and_nothing_else():
    logits = log_probs(0.4, 0.35, 0.2, 0.05).repeat(4000, 1)
    tokens = sample(
        logits, temperature=1.0, top_k=3, top_p=1.0, generator=torch.Generator().manual_seed(1)
    )
    share = tokens.bincount(minlength=4) / len(tokens)
    assert share[3] == 0
    assert torch.allclose(share[:3], torch.tensor([0.421, 0.368, 0.211]), atol=0.03)


def test_sample_greedy():
    logits = random_logits()
    assert torch.equal(sample(logits, temperature=0.0), logits.argmax(-1))
