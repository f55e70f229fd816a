from astrai_engine.chunk_budget import ChunkBudget


def settle(budget, seconds_per_decode, seconds_per_token, num_steps=200, *, num_decoding=8):
    """Run steps on a machine of constant speed; gives the sizes of their chunks."""
    sizes = []
    for _ in range(num_steps):
        tokens = budget.tokens
        sizes.append(tokens)
        budget.observe(num_decoding, tokens, seconds_per_decode + tokens * seconds_per_token)
    return sizes


def test_before_anything_is_known_the_chunk_is_small():
    assert ChunkBudget(256).tokens == 8
    assert ChunkBudget(4).tokens == 4


def test_a_chunk_grows_to_what_the_stretch_allows_and_no_further():
    budget = ChunkBudget(1000, max_stretch=2.0)
    budget.observe(0, 100, 0.1)  # a prompt alone: a millisecond a token
    budget.observe(8, 0, 0.05)  # a decoding step: fifty milliseconds
    assert settle(budget, 0.05, 0.001, 6) == [8, 16, 32, 50, 50, 50]


def test_slower_decoding_leaves_room_for_larger_chunks():
    fast, slow = ChunkBudget(1000), ChunkBudget(1000)
    assert max(settle(fast, 0.02, 0.001)) < max(settle(slow, 0.2, 0.001))


def test_fast_streams_leave_prompts_the_time_that_nobody_notices():
    budget = ChunkBudget(1000)
    budget.observe(1, 0, 0.004)
    assert max(settle(budget, 0.004, 0.001)) == 36


def test_bad_news_counts_at_once():
    """Small chunks may cost more a token than the large ones that the engine warmed up with."""
    budget = ChunkBudget(1000, max_stretch=2.0)
    for _ in range(20):
        budget.observe(0, 512, 0.1)
    budget.observe(8, 0, 0.02)
    sizes = settle(budget, 0.02, 0.002, 16)
    assert max(sizes) <= 16
    assert sizes[-1] in (9, 10)


def test_one_step_in_a_while_goes_without_to_see_what_decoding_costs():
    budget = ChunkBudget(1000, max_stretch=2.0)
    budget.observe(8, 0, 0.02)
    assert settle(budget, 0.02, 0.001, 34).count(0) == 2
    largest = max(settle(budget, 0.06, 0.001))  # the streams' contexts have grown
    assert 55 <= largest <= 60


def test_a_new_prompt_begins_small_again():
    budget = ChunkBudget(1000)
    settle(budget, 0.2, 0.001)
    assert budget.tokens > 8
    for _ in range(2):
        budget.observe(8, 0, 0.2)
    assert budget.tokens == 8


def test_the_estimate_follows_the_machine_and_stays_within_its_bounds():
    budget = ChunkBudget(64, min_tokens=16)
    assert max(settle(budget, 1.0, 1e-6)) == 64
    sizes = settle(budget, 1e-6, 1.0)
    assert {size for size in sizes[-32:] if size} == {16}
