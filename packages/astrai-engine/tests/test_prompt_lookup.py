from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.prompt_lookup import PromptLookup


def grown(tokens, num_prompt, sizes):
    """A lookup that read a sequence as it grew from its prompt by ``sizes`` tokens at a time."""
    token_ids = list(tokens[:num_prompt])
    lookup = PromptLookup(token_ids, num_prompt)
    lookup.read()
    for size in sizes:
        token_ids += tokens[len(token_ids) : len(token_ids) + size]
        lookup.read()
    token_ids += tokens[len(token_ids) :]
    lookup.read()
    return lookup


def expected_guess(tokens, num_prompt):
    """The place of the guess after ``tokens``, found by looking at all of them."""
    guess = None
    for end in range(1, len(tokens) + 1):
        if guess is not None and end > num_prompt and tokens[guess] == tokens[end - 1]:
            guess += 1
            continue
        last = tokens[max(end - 3, 0) : end]
        earlier = [e for e in range(3, end) if len(last) == 3 and tokens[e - 3 : e] == last]
        guess = max(earlier, default=None)
    return guess


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.integers(1, 60),
    st.lists(st.integers(1, 7), max_size=20),
    st.integers(1, 12),
)
def test_the_guess_is_what_came_after_the_last_tokens_before(tokens, num_prompt, sizes, length):
    num_prompt = min(num_prompt, len(tokens))
    lookup = grown(tokens, num_prompt, sizes)
    guess = expected_guess(tokens, num_prompt)
    assert lookup.has_guess == (guess is not None)
    if guess is None:
        return
    continued = list(tokens)
    for offset in range(length):  # the guess goes on into what it has guessed itself
        continued.append(continued[guess + offset])
    assert lookup.draft(length) == continued[len(tokens) :]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.lists(st.integers(1, 7)))
def test_the_chance_does_not_depend_on_how_many_tokens_come_at_once(tokens, sizes):
    assert grown(tokens, 1, sizes).chance == grown(tokens, 1, [1] * len(tokens)).chance


def test_right_guesses_raise_the_chance_and_wrong_ones_lower_it():
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    right = grown([*prompt, 4, 5, 6], len(prompt), [])
    wrong = grown([*prompt, 9, 9, 9], len(prompt), [])
    assert wrong.chance < PromptLookup([], 0).chance < right.chance < 1


def test_a_prompt_says_nothing_about_the_chance():
    assert grown([1, 2, 3, 4] * 20, 80, []).chance == PromptLookup([], 0).chance


def test_a_long_prompt_is_read_in_parts_and_guessed_from_when_all_of_it_is():
    token_ids = [*range(5000), 10, 11, 12]
    lookup = PromptLookup(token_ids, len(token_ids))
    lookup.read()
    assert not lookup.has_guess
    lookup.read()
    assert lookup.draft(2) == [13, 14]
