import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.request import GenerationRequest
from astrai_engine.sequence import Sequence
from astrai_engine.speculation import FREE, MAX_DRAFT_TOKENS, Speculation, StepCost

PROMPT = [*range(20), 0, 1, 2]


def make(prompt=PROMPT, *, max_tokens=100, constraint=None, chance=None):
    """A sequence about to decode whose last tokens have come before."""
    sequence = Sequence(
        task_id="a",
        request_id="a",
        request=GenerationRequest(prompt_token_ids=prompt),
        index=0,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        arrival=0,
        seed=0,
        constraint=constraint,
    )
    if chance is not None:
        Speculation(FREE).draft([sequence], num_tokens=1, budget=0)
        sequence.lookup.chance = chance
    return sequence


def linear(fixed, per_token):
    """Steps that take ``fixed + per_token * tokens`` seconds."""
    return StepCost({n: fixed + per_token * n for n in (1, 2)})


def draft(cost, *sequences, num_tokens=None, budget=100):
    num_tokens = num_tokens or len(sequences)
    return Speculation(cost).draft(sequences, num_tokens=num_tokens, budget=budget)


def test_every_guess_is_taken_where_tokens_are_free():
    assert draft(FREE, make()) == [[*range(3, 3 + MAX_DRAFT_TOKENS)]]


def test_a_text_without_repetition_has_no_draft():
    assert draft(FREE, make([*range(20)])) == [[]]


def test_nothing_is_guessed_where_tokens_cost_as_much_as_steps():
    """The throughput of a large batch can't be raised by guesses that may be wrong."""
    assert draft(linear(0.0, 1.0), make(chance=0.99)) == [[]]


def test_texts_are_not_even_read_where_no_guess_could_pay():
    sequence = make()
    assert draft(linear(0.0, 1.0), sequence) == [[]]
    assert sequence.lookup is None
    assert draft(FREE, sequence) != [[]]  # read as soon as there is room again


def test_a_guess_is_worth_less_the_more_sequences_share_the_step():
    cost = linear(5.5, 1.5)
    few, many = (draft(cost, make(chance=0.6), num_tokens=n)[0] for n in (1, 32))
    assert len(few) > len(many) == 0


def test_the_cost_of_a_token_is_that_at_the_size_of_the_step():
    """Nearly free up to four tokens, as much as any other beyond."""
    cost = StepCost({1: 7.0, 4: 7.3, 8: 15.0})
    few, more = (draft(cost, make(chance=0.5), num_tokens=n)[0] for n in (1, 8))
    assert (len(few), len(more)) == (3, 0)


def test_drafts_grow_with_the_chance():
    cost = linear(5.5, 1.5)
    lengths = [len(draft(cost, make(chance=c))[0]) for c in (0.1, 0.4, 0.7, 0.99)]
    assert lengths == [0, 1, 2, MAX_DRAFT_TOKENS]


def test_guesses_may_keep_others_waiting_only_so_long():
    """Half a step more at most, as long as somebody in it has nothing to gain."""
    cost = linear(20.0, 2.0)
    copying = [make(chance=0.99) for _ in range(3)]
    beside, alone = (sum(map(len, draft(cost, *copying, num_tokens=n))) for n in (4, 3))
    assert beside == 0.5 * (20.0 + 4 * 2.0) // 2.0
    assert alone == 3 * MAX_DRAFT_TOKENS


def test_the_likeliest_guesses_get_a_short_budget():
    assert draft(FREE, make(chance=0.3), make(chance=0.9), budget=4) == [[], [3, 4, 5, 6]]


def test_no_guess_is_made_behind_the_last_token():
    assert draft(FREE, make(max_tokens=4)) == [[3, 4, 5]]
    assert draft(FREE, make(max_tokens=1)) == [[]]


def test_a_sequence_with_a_grammar_has_no_draft():
    assert draft(FREE, make(constraint=object()), make()) == [[], [*range(3, 13)]]


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_budget_is_kept(budget):
    assert sum(map(len, draft(FREE, make(), make(), budget=budget))) == budget


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    st.floats(0.0, 50.0),
    st.floats(0.01, 10.0),
    st.integers(0, 60),
)
def test_a_draft_makes_the_expected_token_cheaper(chances, fixed, per_token, num_others):
    num_tokens = len(chances) + num_others
    cost = linear(fixed, per_token)
    drafts = draft(cost, *(make(chance=c) for c in chances), num_tokens=num_tokens)
    num_drafted = sum(map(len, drafts))
    gained = sum(c**i for c, d in zip(chances, drafts, strict=True) for i in range(1, len(d) + 1))
    without = (fixed + per_token * num_tokens) / num_tokens
    with_drafts = (fixed + per_token * (num_tokens + num_drafted)) / (num_tokens + gained)
    assert with_drafts <= without * (1 + 1e-9)
