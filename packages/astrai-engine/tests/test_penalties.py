import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from astrai_engine.request import GenerationRequest
from astrai_engine.sampling.penalties import (
    apply_penalties,
    changes_logits,
    count_penalties,
    last_tokens,
    repetition_penalty,
)


def request(**parameters):
    return GenerationRequest(prompt="x", **parameters)


def test_repetition_penalty_counts_a_token_once():
    """B113."""
    logits = torch.tensor([2.0, -2.0, 0.0])
    repetition_penalty(logits, [0, 0, 0, 1], 2.0)
    assert logits.tolist() == [1.0, -4.0, 0.0]


def test_repetition_penalty_equals_transformers():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 7, 7, 12, 49, 0]])
    expected = RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    repetition_penalty(logits[0], ids[0].tolist(), 1.3)
    assert torch.equal(logits, expected)


def test_frequency_penalty_is_exact():
    """B116."""
    logits = torch.tensor([5.0, 5.0])
    count_penalties(logits, [0, 0, 0], frequency=1.0, presence=0.0)
    assert logits.tolist() == [2.0, 5.0]


@given(
    tokens=st.lists(st.integers(0, 9), max_size=30),
    frequency=st.floats(-2, 2, width=32),
    presence=st.floats(-2, 2, width=32),
)
def test_count_penalties_equal_the_published_formula(tokens, frequency, presence):
    logits = torch.linspace(-3, 3, 10, dtype=torch.float64)
    expected = [
        value - tokens.count(i) * frequency - (presence if i in tokens else 0.0)
        for i, value in enumerate(logits.tolist())
    ]
    count_penalties(logits, tokens, frequency=frequency, presence=presence)
    assert torch.allclose(logits, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_the_window_is_taken_from_the_end():
    """B114."""
    assert last_tokens([5, 6, 7], 2) == [6, 7]
    assert last_tokens([5, 6, 7], 0) == []
    assert last_tokens([5, 6, 7], 9) == [5, 6, 7]
    assert last_tokens([5, 6, 7], None) == [5, 6, 7]


def test_counts_look_at_the_output_only_and_repetition_at_everything():
    logits = torch.ones(4)
    parameters = request(
        frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=2.0, rep_window=2
    )
    apply_penalties(logits, parameters, [0, 1, 2, 2, 3], num_prompt_tokens=2)
    assert logits.tolist() == [0.5, 0.5, 0.5 - 1.5, 0.5 - 1.5]


def test_bias_comes_first():
    logits = torch.zeros(3)
    parameters = request(logit_bias={1: 4.0, 2: -100.0}, repetition_penalty=2.0)
    apply_penalties(logits, parameters, [1], num_prompt_tokens=1)
    assert logits.tolist() == [0.0, 2.0, -100.0]


def test_a_request_without_changes_says_so():
    assert not changes_logits(request(temperature=0.3, top_k=4))
    for parameters in (
        {"logit_bias": {1: 1.0}},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
    ):
        assert changes_logits(request(**parameters))
