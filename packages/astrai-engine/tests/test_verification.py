"""Guesses are checked by the operations, and drawn with the numbers, of steps without them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.loading import load_model, resolve_source
from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import SampledToken, Sampler
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence
from astrai_engine.verification import confirmed, decode_rows
from astrai_kernels import CpuBackend, native_unavailable_reason
from astrai_kvcache import BindWorkspace, PagePool

CPU = torch.device("cpu")
VOCAB = 64


def tokens(*ids):
    return [SampledToken(i) for i in ids]


def test_tokens_come_up_to_the_first_wrong_guess():
    assert confirmed((), tokens(5)) == tokens(5)
    assert confirmed((5, 6), tokens(5, 6, 7)) == tokens(5, 6, 7)
    assert confirmed((5, 6), tokens(5, 9, 7)) == tokens(5, 9)
    assert confirmed((5, 6), tokens(8, 6, 7)) == tokens(8)


def test_an_error_is_never_a_right_guess():
    error = SampledToken(-1, error="NaN")
    assert confirmed((5, 6), [SampledToken(5), error, SampledToken(7)]) == [SampledToken(5), error]


def make(name="a", *, num_prompt=4, token_ids=(1, 2, 3, 4, 5), **parameters):
    return Sequence(
        task_id=name,
        request_id=name,
        request=GenerationRequest(prompt_token_ids=list(token_ids[:num_prompt]), **parameters),
        index=1,
        token_ids=list(token_ids),
        num_prompt_tokens=num_prompt,
        max_tokens=40,
        arrival=0,
        seed=3,
        num_computed=len(token_ids) - 1,
    )


def logits_after(token_ids):
    """A model: logits that depend on all tokens so far, and are flat enough to draw from."""
    seed = hash(tuple(token_ids)) % 2**31
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


def one_by_one(sampler, sequence, count):
    """The next tokens, a step each."""
    for _ in range(count):
        (token,) = sampler.sample(logits_after(sequence.token_ids)[None], [sequence])
        sequence.token_ids.append(token.token_id)
    return sequence.token_ids[-count:]


@given(
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.7, 1.5]),
            "top_k": st.sampled_from([0, 1, 8]),
            "top_p": st.sampled_from([1.0, 0.8]),
            "min_p": st.sampled_from([0.0, 0.05]),
            "frequency_penalty": st.sampled_from([0.0, 1.5]),
            "presence_penalty": st.sampled_from([0.0, 1.0]),
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "rep_window": st.sampled_from([None, 2]),
            "logit_bias": st.sampled_from([None, {7: 3.0}]),
            "min_tokens": st.sampled_from([0, 4]),
            "stop_token_ids": st.sampled_from([[], [7]]),
            "logprobs": st.booleans(),
        }
    ),
    st.integers(0, 6),
)
def test_drawn_at_once_or_one_by_one_tokens_are_the_same(parameters, num_right):
    """Exactly the same, whatever the sampling: penalties, bans and draws follow the position."""
    sampler = Sampler(eos_token_ids=frozenset({9}))
    expected = one_by_one(sampler, make(**parameters), 7)
    sequence = make(**parameters)
    draft = expected[:num_right] + [(t + 1) % VOCAB for t in expected[num_right:6]]
    rows = [sequence, *(sequence.after(draft[: n + 1]) for n in range(6))]
    logits = torch.stack([logits_after(row.token_ids) for row in rows])
    came = [t.token_id for t in confirmed(draft, sampler.sample(logits, rows))]
    assert came == expected[: num_right + 1]


def test_a_guess_is_a_decode_row_over_the_pages_of_its_sequence():
    pool = PagePool(1, 1, 8, 4, 64, "cpu", torch.float32, page_size=4, n_tokens=64)
    batch = [
        ScheduledSequence(make("a", num_prompt=5), 1, samples=True),
        ScheduledSequence(make("b"), 1, samples=True, draft=(6, 7)),
        ScheduledSequence(replace(make("c", num_prompt=5), num_computed=0), 5, samples=True),
    ]
    for item, length in zip(batch, (5, 7, 5), strict=True):
        pool.task_alloc(item.sequence.task_id, item.sequence.token_ids)
        pool.task_extend(item.sequence.task_id, length - 1)
    bound = pool.bind_tasks(["a", "b", "c"], BindWorkspace(4, 16, "cpu"), q_lens=[1, 3, 5])
    cache = decode_rows(bound, batch)
    a, b, c = bound.req_pool_indices.tolist()
    assert cache.req_pool_indices.tolist() == [a, b, b, b, c]
    assert cache.seq_lens.tolist() == [5, 5, 6, 7, 5]
    assert cache.qo_indptr.tolist() == [0, 1, 2, 3, 4, 9]
    assert cache.kv_indptr.tolist() == [0, 5, 10, 16, 23, 28]
    assert cache.qo_indptr.dtype is cache.kv_indptr.dtype is torch.int32
    assert torch.equal(cache.out_cache_loc, bound.out_cache_loc)


@pytest.fixture(scope="module")
def embedded():
    """The embedded model, in the form it is served in."""
    if reason := native_unavailable_reason():
        pytest.skip(reason)
    source = resolve_source(None)
    return load_model(source, device=CPU, dtype=torch.float32, precision="file").model


class Steps:
    """Runs one sequence of tokens, some at a time, over a pool of its own."""

    def __init__(self, model):
        config = model.config
        self._model, self._backend = model, CpuBackend(strict=True)
        self._pool = PagePool(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            2,
            1024,
            "cpu",
            torch.float16,
            page_size=16,
            n_tokens=2048,
        )
        self._workspace = BindWorkspace(2, 1024, "cpu")
        self._pool.task_alloc("a", [0])

    @torch.inference_mode()
    def logits(self, token_ids, start, draft=()):
        """Of the tokens from ``start`` on, and of guesses behind them."""
        new = [*token_ids[start:], *draft]
        self._pool.task_extend("a", start + len(new) - 1)
        cache = self._pool.bind_tasks(["a"], self._workspace, q_lens=[len(new)])
        if draft:
            sequence = make("a", token_ids=token_ids)
            cache = decode_rows(cache, [ScheduledSequence(sequence, 1, True, tuple(draft))])
        positions = torch.arange(start, start + len(new))
        return self._model.forward(torch.tensor(new), positions, cache, self._backend)


@pytest.mark.parametrize("length", [30, 510])
def test_guesses_have_the_very_logits_of_steps_of_their_own(embedded, length):
    """Bit for bit; at 510 tokens they lie on both sides of a place where keys are split."""
    generator = torch.Generator().manual_seed(length)
    text = torch.randint(1000, 40000, (length + 8,), generator=generator).tolist()
    alone, together = Steps(embedded), Steps(embedded)
    for steps in (alone, together):
        steps.logits(text[: length - 1], 0)
    wanted = [alone.logits(text[: length + n], length + n - 1) for n in range(8)]
    found = together.logits(text[:length], length - 1, text[length : length + 7])
    assert torch.equal(found, torch.cat(wanted))
    wrong = together.logits(text[:length], length - 1, [5, 6, 7])
    assert torch.equal(wrong[0], found[0])
    assert torch.equal(together.logits(text[: length + 1], length), found[1:2])
