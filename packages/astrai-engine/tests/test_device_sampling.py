"""The kernel's op against the sampler in torch: on the CPU, where the op is torch as well."""

import logging
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import Sampler, device, sampler
from astrai_engine.sampling.draw import uniforms
from astrai_engine.sequence import Sequence
from astrai_kernels.ops.sample import SampleRow, pack_rows
from astrai_kernels.ops.sample import uniforms as uniforms_of_rows

VOCAB = 1500


def make(seed=0, index=0, num_generated=3, **parameters):
    return Sequence(
        task_id=f"{seed}-{index}",
        request_id="r",
        request=GenerationRequest(prompt_token_ids=[1, 2], **parameters),
        index=index,
        token_ids=[1, 2, *[5] * num_generated],
        num_prompt_tokens=2,
        max_tokens=40,
        arrival=0,
        seed=seed,
    )


PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 40, 1200]),
        "top_p": st.sampled_from([0.0, 0.3, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.9]),
    }
)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(PARAMETERS, min_size=1, max_size=6), seed=st.integers(-(2**63), 2**63 - 1))
def test_draws_the_tokens_that_the_sampler_draws(rows, seed):
    generator = torch.Generator().manual_seed(abs(seed) % 1000)
    logits = 3 * torch.randn(len(rows), VOCAB, generator=generator)
    sequences = [make(seed, index, **row) for index, row in enumerate(rows)]
    plan = sampler._Plan.of(sequences, logits.shape[-1])
    expected = sampler._choose(logits, plan)[1]
    assert device.choose_on_device(logits, sequences)[1] == expected


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40)),
        max_size=5,
    )
)
def test_the_numbers_drawn_with_are_the_samplers_bit_for_bit(counters):
    rows = pack_rows([SampleRow(seed=s, choice=c, position=p) for s, c, p in counters])
    assert uniforms_of_rows(rows).tolist() == uniforms(counters).tolist()


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(sampler, "draws_on_device", lambda logits: True)


@pytest.mark.usefixtures("on_device")
def test_rows_without_a_token_fail_alone():
    logits = torch.randn(4, VOCAB)
    logits[1, 7] = nan
    logits[2] = -inf
    logits[3, 9] = inf
    outcomes = Sampler(frozenset()).sample(logits, [make(n) for n in range(4)])
    assert [outcome.error for outcome in outcomes] == [
        None,
        "The model produced NaN for this request.",
        "No token is possible: every logit is minus infinity.",
        None,
    ]
    assert outcomes[3].token_id == 9


@pytest.mark.usefixtures("on_device")
def test_what_changes_logits_comes_before_the_draw():
    logits = torch.zeros(1, VOCAB)
    sequence = make(logit_bias={77: 50.0}, temperature=0.0)
    (outcome,) = Sampler(frozenset()).sample(logits, [sequence])
    assert outcome.token_id == 77


def test_a_gpu_without_kernel_is_told_once(monkeypatch, caplog):
    class Logits:
        is_cuda = True

    device._tell_once.cache_clear()
    monkeypatch.setattr(device, "sampling_unavailable_reason", lambda logits: "no compiler.")
    with caplog.at_level(logging.WARNING):
        assert [device.draws_on_device(Logits()) for _ in range(3)] == [False] * 3
    assert [record.message for record in caplog.records] == [
        "Tokens are drawn by torch: no compiler."
    ]
    monkeypatch.setattr(device, "sampling_unavailable_reason", lambda logits: None)
    assert device.draws_on_device(Logits())
    assert not device.draws_on_device(torch.zeros(1, 4))
