from astrai_engine.chunk_budget import ChunkBudget


def test_before_anything_is_known_the_chunk_is_small():
    assert ChunkBudget(256).tokens == 32
    assert ChunkBudget(8).tokens == 8


def test_a_mixed_step_takes_no_longer_than_the_stretch_allows():
    budget = ChunkBudget(1000, min_tokens=1, max_stretch=2.0)
    budget.observe(0, 100, 0.1)  # a prompt alone: a millisecond a token
    budget.observe(8, 0, 0.05)  # a decoding step: fifty milliseconds
    assert budget.tokens == 50


def test_slower_decoding_leaves_room_for_larger_chunks():
    fast, slow = ChunkBudget(1000), ChunkBudget(1000)
    for budget, seconds in ((fast, 0.02), (slow, 0.2)):
        budget.observe(0, 100, 0.1)
        budget.observe(4, 0, seconds)
    assert fast.tokens < slow.tokens


def test_mixed_steps_teach_the_cost_of_a_prompt_token():
    budget = ChunkBudget(1000, max_stretch=2.0)
    budget.observe(8, 0, 0.05)
    budget.observe(8, 25, 0.1)  # fifty milliseconds more for twenty-five tokens
    assert budget.tokens == 25


def test_the_estimate_follows_the_machine_and_stays_within_its_bounds():
    budget = ChunkBudget(64, min_tokens=16)
    budget.observe(1, 0, 1.0)
    for _ in range(50):
        budget.observe(0, 1000, 0.001)
    assert budget.tokens == 64
    for _ in range(200):
        budget.observe(1, 0, 1e-6)
        budget.observe(0, 10, 1.0)
    assert budget.tokens == 16
