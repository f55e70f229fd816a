import math

import pytest
import torch

from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import Sampler, SamplingPipeline
from astrai_engine.sampling import sampler as sampler_module
from astrai_engine.sampling.strategies import (
    MinPStrategy,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
)
from astrai_engine.sequence import Sequence

EOS = 2


def sequence(generated=(), *, prompt=(0,), seed=1, index=0, **parameters):
    return Sequence(
        task_id="t",
        request_id="r",
        request=GenerationRequest(prompt_token_ids=list(prompt), **parameters),
        index=index,
        token_ids=[*prompt, *generated],
        num_prompt_tokens=len(prompt),
        max_tokens=100,
        arrival=0,
        seed=seed,
    )


def choose(logits, *sequences):
    results = Sampler(frozenset({EOS})).sample(torch.as_tensor(logits).clone(), sequences)
    return [result.token_id for result in results]


def random_logits(rows, vocab=200, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}])
def test_greedy_forms_take_the_likeliest(parameters):
    logits = random_logits(4)
    assert choose(logits, *[sequence(**parameters)] * 4) == logits.argmax(-1).tolist()


def test_penalties_count_when_greedy():
    """B101."""
    assert choose([[1.0, 2.0]], sequence([1, 1], temperature=0.0, frequency_penalty=2.0)) == [0]


def test_bias_forces_and_forbids():
    """B111."""
    logits = random_logits(2)
    best = int(logits[1].argmax())
    forced, forbidden = choose(
        logits,
        sequence(temperature=0.0, logit_bias={7: 100.0}),
        sequence(temperature=0.0, logit_bias={best: -100.0}),
    )
    assert forced == 7
    assert forbidden == logits[1].topk(2).indices[1]


def test_min_tokens_forbids_the_end():
    logits = torch.zeros(1, 5)
    logits[0, EOS] = 9.0
    parameters = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": [0]}
    assert choose(logits, sequence([1], **parameters)) == [1]
    assert choose(logits, sequence([1, 1], **parameters)) == [EOS]


def test_a_row_of_nan_fails_alone():
    """B108."""
    logits = random_logits(3)
    logits[1, 5] = math.nan
    rows = [sequence(), sequence(), sequence(temperature=0.0)]
    results = Sampler(frozenset()).sample(logits.clone(), rows)
    assert [r.error is None for r in results] == [True, False, True]
    assert results[2].token_id == int(logits[2].argmax())
    assert results[0].token_id == choose(logits[:1], rows[0])[0]


def test_infinite_logits():
    """B109."""
    inf = math.inf
    results = Sampler(frozenset()).sample(
        torch.tensor([[0.0, inf, 0.0], [-inf, -inf, -inf]]), [sequence(), sequence()]
    )
    assert results[0].token_id == 1
    assert results[1].error is not None


CASES = [
    {"temperature": 1.0, "top_k": 50},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.9},
    {"temperature": 2.0, "top_k": -1, "top_p": 0.99, "min_p": 0.001},
    {"temperature": 1.0, "top_k": 0},
    {"temperature": 1.5, "top_k": 0, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 199, "top_p": 0.95},
]


@pytest.mark.parametrize("parameters", CASES)
@pytest.mark.parametrize("max_candidates", [1024, 16])
def test_draws_follow_the_reference_distribution(parameters, max_candidates, monkeypatch):
    """Each fast path draws from exactly what the strategies in a row leave."""
    monkeypatch.setattr(sampler_module, "MAX_CANDIDATES", max_candidates)
    logits = random_logits(1)
    full = {"top_p": 1.0, "min_p": 0.0, **parameters}
    reference = SamplingPipeline(
        [
            TemperatureStrategy(full["temperature"]),
            TopKStrategy(full["top_k"]),
            TopPStrategy(full["top_p"]),
            MinPStrategy(full["min_p"]),
        ]
    )
    probs = reference.apply(logits.double()).softmax(-1)[0]
    draws = 3000
    rows = [sequence(seed=s, **parameters) for s in range(draws)]
    tokens = torch.tensor(choose(logits.repeat(draws, 1), *rows))
    assert bool((probs[tokens] > 0).all()), "a removed token was drawn"
    counts = tokens.bincount(minlength=probs.numel()).double()
    likely = probs * draws >= 5
    chi2 = ((counts - probs * draws) ** 2 / (probs * draws).clamp(min=1e-9))[likely].sum()
    degrees = int(likely.sum())
    assert chi2 < degrees + 5 * math.sqrt(2 * degrees) + 5


def test_a_row_gets_the_same_token_alone_and_in_any_batch():
    """B119: mixed parameters and neighbours change nothing."""
    rows = [
        sequence(generated=range(i), seed=i, index=i % 3, **CASES[i % len(CASES)])
        for i in range(24)
    ]
    logits = random_logits(24)
    together = choose(logits, *rows)
    alone = [choose(logits[i : i + 1], row)[0] for i, row in enumerate(rows)]
    assert together == alone
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = choose(logits[order], *[rows[i] for i in order])
    assert shuffled == [together[i] for i in order]


def test_seed_choice_and_position_all_matter():
    logits = torch.zeros(1, 200).repeat(64, 1)
    by_seed = choose(logits, *[sequence(seed=s, top_k=0) for s in range(64)])
    by_index = choose(logits, *[sequence(index=i, top_k=0) for i in range(64)])
    by_position = choose(logits, *[sequence(range(n), top_k=0) for n in range(64)])
    assert all(len(set(tokens)) > 40 for tokens in (by_seed, by_index, by_position))


def test_logprobs_are_of_the_raw_distribution():
    """B095: temperature, filters, bias and penalties do not change them."""
    logits = random_logits(3)
    parameters = {"logprobs": True, "top_logprobs": 3, "logit_bias": {4: 50.0}}
    results = Sampler(frozenset()).sample(
        logits.clone(),
        [
            sequence(temperature=0.0, **parameters),
            sequence(temperature=0.5),
            sequence(top_p=0.1, **parameters),
        ],
    )
    raw = logits.log_softmax(-1)
    assert results[1].logprobs is None
    for row in (0, 2):
        entry = results[row].logprobs
        assert results[row].token_id == 4
        assert entry.chosen == pytest.approx(float(raw[row, 4]), abs=1e-6)
        best = raw[row].topk(3)
        assert [i for i, _ in entry.top] == best.indices.tolist()
        assert [v for _, v in entry.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_impossible_tokens_have_a_finite_logprob():
    logits = torch.tensor([[0.0, -math.inf]])
    row = sequence(temperature=0.0, logprobs=True, top_logprobs=2)
    result = Sampler(frozenset()).sample(logits, [row])
    assert result[0].logprobs.top == ((0, 0.0), (1, -9999.0))
