import pytest
import torch

from astrai_kvcache import (
    Allocator,
    BindWorkspace,
    Capacity,
    DuplicateTaskError,
    InvalidArgumentError,
    PageStateError,
    PromptTooLongError,
    UnknownTaskError,
)
from astrai_kvcache.testing import check_invariants


def counts(pool):
    check_invariants(pool)
    assert pool.num_free_pages + pool.num_cached_pages + pool.num_in_use_pages == pool.num_pages
    return pool.num_free_pages, pool.num_cached_pages, pool.num_in_use_pages


def snapshot(pool):
    """All that a failed call must leave alone."""
    check_invariants(pool)
    allocator, prefix = pool._pages.allocator, pool._pages.prefix
    return (
        pool.capacity(),
        list(allocator._cached),
        list(allocator._refs),
        allocator._free.runs(),
        prefix.pages() if prefix else None,
        pool._table._pending.copy(),
        list(pool._table.free_slots),
        {
            name: (t.row, t.length, list(t.pages), t.num_recorded, t.num_shared)
            for name, t in pool._tasks.by_id.items()
        },
        repr(pool.counters),
    )


# Construction


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size must be at least 1, not 0"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_seq_len": -1}, "max_seq_len"),
        ({"n_tokens": 3}, "n_tokens must be at least one page of 4, not 3"),
    ],
)
def test_sizes_out_of_range_are_refused(make_pool, changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_pool(**changes)


def test_the_pool_is_rounded_down_to_whole_pages(make_pool):
    pool = make_pool(n_tokens=19)
    assert (pool.n_tokens, pool.num_pages, pool.storage.size) == (16, 4, 16)


def test_the_attributes_of_the_seed(make_pool):
    pool = make_pool(device="cpu")
    assert pool.device == torch.device("cpu")
    assert (pool.n_layers, pool.n_kv_heads, pool.head_dim) == (2, 1, 1)
    assert (pool.max_batch_size, pool.max_seq_len, pool.page_size) == (4, 32, 4)
    assert (pool.dtype, pool.contiguous) == (torch.float64, False)


# Adding and removing tasks


@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_a_second_equal_prompt_reuses_all_but_the_last_token(make_pool, make_model, page_size):
    model = make_model(make_pool(page_size=page_size))
    tokens = list(range(100, 112))
    assert model.run("a", tokens) == 0
    assert model.run("b", tokens) == 11 // page_size * page_size
    check_invariants(model.pool)


def test_the_last_token_is_computed_even_when_its_page_is_known(make_pool, make_model):
    model = make_model(make_pool())
    model.run("a", range(8))
    assert model.pool.prefix_len(range(8)) == 4
    assert model.run("b", range(8)) == 4
    assert model.pool.prefix_len(range(9)) == 8
    assert model.pool._tasks.by_id["a"].pages == model.pool._tasks.by_id["b"].pages
    assert counts(model.pool) == (14, 0, 2)


def test_no_more_is_found_than_was_asked_for(make_pool, make_model):
    pool = make_pool()
    make_model(pool).run("a", range(20))
    for num_tokens, cached in ((1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (20, 16), (24, 16)):
        assert pool.task_alloc("b", range(20), num_tokens=num_tokens)
        assert pool.task_cached("b") == cached
        assert pool.bind_tasks(["b"], BindWorkspace(1, 64, "cpu")).max_len == num_tokens
        pool.task_free("b")


def test_a_prompt_can_be_reserved_chunk_by_chunk(make_pool, make_model):
    model = make_model(make_pool())
    tokens = list(range(19))
    assert model.pool.task_alloc("a", tokens, num_tokens=6)
    assert counts(model.pool) == (14, 0, 2)
    for end, q_len in ((6, 6), (13, 7), (19, 6)):
        assert model.pool.task_extend("a", end - 1)
        model.compute({"a": tokens[:end]}, [q_len])
        model.pool.task_record_hashes("a", tokens[:end], start_logical_page=(end - q_len) // 4)
        assert model.pool.prefix_len(tokens) == end // 4 * 4
    assert model.read("a") == model.expected(tokens)


def test_a_negative_number_of_tokens_is_refused(make_pool):
    with pytest.raises(InvalidArgumentError, match="num_tokens must not be negative, as -1 is"):
        make_pool().task_alloc("a", [1], num_tokens=-1)


@pytest.mark.parametrize("n_tokens", [None, 64])
def test_an_empty_prompt_takes_a_row_and_no_page(make_pool, n_tokens):
    pool = make_pool(n_tokens=n_tokens)
    free = pool.num_free_pages
    assert pool.task_alloc("a", [])
    assert pool.task_cached("a") == 0
    assert pool.capacity().num_free_rows == 3
    assert pool.task_extend("a", 0)
    assert pool.num_free_pages == free - 1
    check_invariants(pool)


def test_a_task_id_in_use_is_refused(make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(5))
    before = snapshot(pool)
    with pytest.raises(DuplicateTaskError, match="Task 'a' exists already"):
        pool.task_alloc("a", range(3))
    assert snapshot(pool) == before


@pytest.mark.parametrize(
    ("changes", "arguments", "longest"),
    [
        ({}, {"prompt_ids": range(33)}, 32),
        ({}, {"prompt_ids": range(3), "num_tokens": 33}, 32),
        ({"n_tokens": None}, {"prompt_ids": range(33)}, 32),
        ({"n_tokens": 18}, {"prompt_ids": range(17)}, 16),
        ({"n_tokens": 18}, {"prompt_ids": range(17), "num_tokens": 4}, 16),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused(make_pool, changes, arguments, longest):
    pool = make_pool(**changes)
    with pytest.raises(PromptTooLongError, match=f"at most {longest} tokens") as caught:
        pool.task_alloc("a", **arguments)
    assert caught.value.max_tokens == longest
    assert caught.value.num_tokens in (17, 33)
    pool.task_alloc("a", range(longest))
    check_invariants(pool)


def test_without_a_row_nothing_is_added(make_pool):
    pool = make_pool(max_batch_size=1)
    pool.task_alloc("a", [1])
    before = snapshot(pool)
    assert not pool.task_alloc("b", [1])
    assert not pool.task_fork("a", "b")
    assert snapshot(pool) == before


def test_a_failed_alloc_changes_nothing(make_pool, make_model):
    """B016: counts are settled at admission; a request that waits keeps no claim on a hit."""
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    model.run("x", [1] * 8)
    pool.task_free("x")
    pool.task_alloc("y", [2] * 8)
    before = snapshot(pool)
    assert not pool.task_alloc("z", [1] * 8 + [3] * 8)  # two hits, two more needed, none free
    assert snapshot(pool) == before
    assert pool.prefix_len([1] * 8 + [3] * 8) == 8
    assert pool.task_extend("y", 15)  # pushes the waiting prompt's pages out
    pool.task_free("y")
    assert model.run("z", [1] * 8 + [3] * 8) == 0
    check_invariants(pool)


def test_pages_hit_are_never_evicted_for_the_rest_of_their_own_prompt(make_pool, make_model):
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    model.run("x", [1] * 8)
    pool.task_free("x")
    model.run("y", [2] * 8)
    pool.task_free("y")
    assert counts(pool) == (0, 4, 0)
    assert model.run("z", [1] * 8 + [3] * 8) == 8
    assert counts(pool) == (0, 0, 4)
    assert pool.counters.num_evictions == 2


def test_freeing_is_idempotent_and_unknown_tasks_are_ignored(make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(5))
    pool.task_free("a")
    pool.task_free("a")
    pool.task_free("never")
    assert counts(pool) == (16, 0, 0)
    assert pool.task_cached("never") == 0
    assert pool.task_extend("never", 0) is False
    pool.task_record_hashes("never", range(8))


# Growing


def test_extending_takes_a_page_only_at_its_start(make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(3))
    for pos, in_use in ((3, 1), (4, 2), (7, 2), (8, 3)):
        assert pool.task_extend("a", pos)
        assert counts(pool) == (16 - in_use, 0, in_use)


def test_extending_far_reserves_all_positions_up_to_there(make_pool):
    pool = make_pool()
    pool.task_alloc("a", [1])
    assert pool.task_extend("a", 20)
    assert counts(pool) == (10, 0, 6)


@pytest.mark.parametrize("n_tokens", [None, 64])
@pytest.mark.parametrize("pos", [-1, 32, 1000])
def test_extending_outside_the_context_is_refused(make_pool, n_tokens, pos):
    pool = make_pool(n_tokens=n_tokens)
    pool.task_alloc("a", range(3))
    before = snapshot(pool)
    assert pool.task_extend("a", pos) is False
    assert snapshot(pool) == before


def test_a_failed_extend_changes_nothing(make_pool):
    pool = make_pool(n_tokens=16)
    pool.task_alloc("a", range(5))
    pool.task_alloc("b", range(3))
    before = snapshot(pool)
    assert pool.task_extend("a", 12) is False
    assert snapshot(pool) == before
    assert pool.task_extend("a", 11)


def test_extending_less_takes_tokens_back(make_pool, make_model):
    model = make_model(make_pool())
    model.run("a", [1, 2, 3, 4, 5, 6, 7])
    assert model.pool.task_extend("a", 4)
    assert counts(model.pool) == (14, 0, 2)
    assert model.pool.task_extend("a", 5)
    model.compute({"a": [1, 2, 3, 4, 5, 9]}, [1])
    assert model.read("a") == model.expected([1, 2, 3, 4, 5, 9])


def test_a_task_in_a_roomy_pool_has_consecutive_slots(make_pool):
    pool = make_pool(max_seq_len=64, n_tokens=256)
    for task_id in ("a", "b"):
        pool.task_alloc(task_id, range(9))
    for pos in range(9, 40):
        for task_id in ("a", "b"):
            assert pool.task_extend(task_id, pos)
    table = pool.bind_tasks(["a", "b"], BindWorkspace(2, 2, "cpu")).req_to_token
    for row in table[:2, :40].tolist():
        assert row == list(range(row[0], row[0] + 40))


# Exactness


def test_identical_pages_in_one_prompt(make_pool, make_model):
    """B002: the second copy of a page has K/V of other positions."""
    model = make_model(make_pool())
    tokens = [1, 2, 3, 4, 1, 2, 3, 4, 7]
    assert model.run("a", tokens) == 0
    assert model.run("b", tokens) == 8
    first, second = model.pool._tasks.by_id["b"].pages[:2]
    assert first != second


def test_crafted_collisions_do_not_share(make_pool, make_model):
    """B004: pages that are equal under a guessable hash."""
    model = make_model(make_pool(page_size=2))
    assert model.run("a", [0, 31, 5]) == 0
    assert model.run("b", [1, 0, 5]) == 0
    assert model.run("c", [-1, 3, 5]) == 0
    assert model.run("d", [-2, 3, 5]) == 0


def test_an_evicted_prefix_is_not_found_again(make_pool, make_model):
    """B009: an evicted page stays findable and is read after it was overwritten."""
    model = make_model(make_pool(n_tokens=16))
    model.run("x", [1] * 8)
    model.pool.task_free("x")
    model.run("y", [2] * 16)
    model.pool.task_free("y")
    assert model.pool.prefix_len([1] * 9) == 0
    assert model.run("x", [1] * 8) == 0
    check_invariants(model.pool)


def admit_twice(model, tokens):
    """Two equal prompts in one step, recorded one after the other."""
    for task_id in ("a", "b"):
        assert model.pool.task_alloc(task_id, tokens)
        assert model.pool.task_cached(task_id) == 0
    model.compute({"a": tokens, "b": tokens}, [len(tokens)] * 2)
    for task_id in ("a", "b"):
        model.pool.task_record_hashes(task_id, tokens)
    check_invariants(model.pool)


def test_two_equal_prompts_in_one_step_end_up_on_the_same_pages(make_pool, make_model):
    """B011: two pages with equal content, one of which is evicted."""
    model = make_model(make_pool())
    admit_twice(model, [5] * 9)
    assert counts(model.pool) == (12, 0, 4)
    model.pool.task_free("a")
    assert counts(model.pool) == (13, 0, 3)
    assert model.read("b") == model.expected([5] * 9)
    assert model.pool.prefix_len([5] * 9) == 8
    model.pool.task_free("b")
    assert counts(model.pool) == (14, 2, 0)


def test_pages_given_back_by_a_duplicate_are_not_read_any_more(make_pool, make_model):
    """B012: a third prompt takes the pages that the second gave up."""
    model = make_model(make_pool(n_tokens=32))
    admit_twice(model, [5] * 9)
    assert model.run("c", [6] * 16) == 0
    assert model.read("a") == model.read("b") == model.expected([5] * 9)
    assert counts(model.pool) == (0, 0, 8)


def test_a_prompt_shorter_than_a_page_is_not_cached(make_pool, make_model):
    """B014."""
    model = make_model(make_pool(page_size=16))
    assert model.run("a", [1, 2, 3, 4, 5]) == 0
    assert model.run("b", [1, 2, 3, 4, 5]) == 0
    assert len(model.pool._pages.prefix) == 0


@pytest.mark.parametrize("shared", [0, 1, 3, 4, 5, 8])
def test_prompts_that_share_some_tokens_are_computed_as_if_alone(make_pool, make_model, shared):
    """B020: what was cached for one prompt decides the answer to another."""
    model = make_model(make_pool())
    prefix = list(range(10, 10 + shared))
    model.run("a", prefix + [1] * (12 - shared))
    assert model.run("b", prefix + [2] * (12 - shared)) == shared // 4 * 4


def test_salts_separate_tenants(make_pool, make_model):
    model = make_model(make_pool())
    assert model.run("a", range(9), "red") == 0
    assert model.run("b", range(9), "blue") == 0
    assert model.pool.prefix_len(range(9)) == 0
    assert model.pool.prefix_len(range(9), salt="red") == 8
    assert model.run("c", range(9), "red") == 8
    assert model.pool.pin_prefix("p", range(9)) == 0
    check_invariants(model.pool)


def test_generated_tokens_are_found_by_the_next_turn(make_pool, make_model):
    model = make_model(make_pool())
    tokens = [1, 2, 3, 4, 5]
    model.run("a", tokens)
    for token in (6, 7, 8, 9):
        tokens.append(token)
        assert model.pool.task_extend("a", len(tokens) - 1)
        model.pool.task_record_hashes("a", tokens[:-1], start_logical_page=1)
        model.compute({"a": tokens}, [1])
    model.pool.task_record_hashes("a", tokens, start_logical_page=1)
    model.pool.task_free("a")
    assert model.run("b", [*tokens, 10, 11, 12]) == 8


def test_no_page_is_recorded_beyond_the_length(make_pool, make_model):
    model = make_model(make_pool())
    model.run("a", range(7))
    model.pool.task_record_hashes("a", range(8))
    assert model.pool.prefix_len(range(9)) == 4


def test_pages_behind_a_gap_are_not_recorded(make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(12))
    pool.task_record_hashes("a", range(12), start_logical_page=1)
    assert pool.prefix_len(range(12)) == 0
    pool.task_record_hashes("a", range(4))
    pool.task_record_hashes("a", range(12), start_logical_page=1)
    assert pool.prefix_len(range(13)) == 12


def test_the_prefix_cache_can_be_switched_off(make_pool, make_model):
    model = make_model(make_pool(prefix_cache=False))
    assert model.run("a", range(9)) == 0
    assert model.run("b", range(9)) == 0
    model.pool.task_free("a")
    model.pool.task_free("b")
    model.pool.reset_prefix_cache()
    assert model.pool.pin_prefix("p", range(9)) == 0
    assert counts(model.pool) == (16, 0, 0)
    assert model.pool.counters.num_page_misses == 0


# Eviction


def test_eviction_is_least_recently_used_and_leaves_first(make_pool, make_model):
    events = []
    pool = make_pool(n_tokens=24, on_event=events.append)
    model = make_model(pool)
    model.run("a", [0] * 4 + [1] * 8)
    model.run("b", [0] * 4 + [2] * 4)
    pool.task_free("a")
    pool.task_free("b")
    events.clear()
    pool.task_alloc("c", [9] * 24)
    evicted = [event.token_ids[0] for event in events]
    assert evicted == [1, 1, 2, 0]
    check_invariants(pool)


def test_a_query_does_not_change_what_is_evicted_next(make_pool, make_model):
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    for task_id, token in (("a", 1), ("b", 2)):
        model.run(task_id, [token] * 8)
        pool.task_free(task_id)
    before = snapshot(pool)
    assert pool.prefix_len([1] * 9) == 8
    assert snapshot(pool) == before


def test_a_hit_makes_a_prefix_young_again(make_pool, make_model):
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    for task_id, token in (("a", 1), ("b", 2), ("a", 1)):
        model.run(task_id, [token] * 8)
        pool.task_free(task_id)
    model.run("c", [3] * 8)
    assert pool.prefix_len([1] * 9) == 8
    assert pool.prefix_len([2] * 9) == 0


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_no_page_leaks(make_pool, make_model, page_size):
    """B025: when all is idle, free and cached pages are all there is."""
    pool = make_pool(page_size=page_size, n_tokens=48)
    model = make_model(pool)
    for i in range(20):
        tokens = [j * i % 5 for j in range(1 + i)]
        model.run("a", tokens)
        assert pool.task_fork("a", "b")
        assert pool.task_extend("b", len(tokens))
        pool.task_free("a")
        pool.task_free("b")
        assert pool.num_free_pages + pool.num_cached_pages == pool.num_pages
    assert counts(pool)[2] == 0


# Forks


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("length", [7, 8])
def test_forks_share_full_pages_and_diverge_after(make_pool, make_model, page_size, length):
    model = make_model(make_pool(page_size=page_size))
    pool = model.pool
    tokens = list(range(length))
    model.run("a", tokens)
    in_use = pool.num_in_use_pages
    assert pool.task_fork("a", "b")
    assert pool.num_in_use_pages == in_use + (length % page_size > 0)
    check_invariants(pool)
    for task_id in ("a", "b"):
        assert pool.task_extend(task_id, length)
    model.compute({"a": [*tokens, 50], "b": [*tokens, 60]}, [1, 1])
    assert model.read("a") == model.expected([*tokens, 50])
    assert model.read("b") == model.expected([*tokens, 60])
    pool.task_record_hashes("b", [*tokens, 60])
    pool.task_free("a")
    assert model.read("b") == model.expected([*tokens, 60])
    check_invariants(pool)


def test_forking_copies_the_row_in_contiguous_mode(make_pool, make_model):
    model = make_model(make_pool(n_tokens=None))
    model.run("a", range(7))
    assert model.pool.task_fork("a", "b")
    model.pool.task_free("a")
    assert model.read("b") == model.expected(range(7))


def test_an_empty_task_can_be_forked(make_pool):
    pool = make_pool()
    pool.task_alloc("a", [])
    assert pool.task_fork("a", "b")
    assert counts(pool) == (16, 0, 0)


def test_a_fork_reports_what_its_parent_had_cached(make_pool, make_model):
    model = make_model(make_pool())
    model.run("x", range(9))
    model.run("a", range(9))
    model.pool.task_fork("a", "b")
    assert model.pool.task_cached("b") == 8


def test_a_fork_after_tokens_were_taken_back_has_no_more_than_the_rest(make_pool, make_model):
    model = make_model(make_pool())
    model.run("a", range(12))
    assert model.pool.task_extend("a", 5)
    assert model.pool.task_fork("a", "b")
    assert model.read("b") == model.expected(range(6))
    model.pool.task_extend("b", 6)
    model.compute({"b": [0, 1, 2, 3, 4, 5, 99]}, [1])
    assert model.read("b") == model.expected([0, 1, 2, 3, 4, 5, 99])
    assert model.run("c", range(12)) == 8
    check_invariants(model.pool)


def test_a_failed_fork_changes_nothing(make_pool):
    pool = make_pool(n_tokens=16)
    pool.task_alloc("a", range(15))
    before = snapshot(pool)
    assert not pool.task_fork("a", "b")
    with pytest.raises(UnknownTaskError):
        pool.task_fork("x", "b")
    with pytest.raises(DuplicateTaskError):
        pool.task_fork("a", "a")
    assert snapshot(pool) == before


def test_forks_that_share_unrecorded_pages_move_together(make_pool, make_model):
    """Whoever holds a page must hold the pages it continues, or those are evicted below it."""
    model = make_model(make_pool())
    pool = model.pool
    tokens = list(range(12))
    assert pool.task_alloc("a", tokens)
    model.compute({"a": tokens}, [12])
    assert pool.task_fork("a", "b")
    pool.task_alloc("short", [77])
    model.run("c", tokens[:9])  # records the first two pages, with pages of its own
    pool.task_record_hashes("a", tokens)
    assert pool._tasks.by_id["a"].pages == pool._tasks.by_id["b"].pages
    check_invariants(pool)
    pool.task_free("a")
    pool.task_free("c")
    assert counts(pool) == (12, 0, 4)
    pool.task_record_hashes("b", tokens)
    assert model.read("b") == model.expected(tokens)
    check_invariants(pool)


def test_a_fork_cannot_record_other_tokens_for_a_shared_page(make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(8))
    pool.task_fork("a", "b")
    pool.task_record_hashes("a", range(8))
    before = snapshot(pool)
    with pytest.raises(PageStateError, match="recorded with other tokens"):
        pool.task_record_hashes("b", [9] * 8)
    assert snapshot(pool) == before


# Pins


def test_a_pinned_prefix_is_never_evicted(make_pool, make_model):
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    model.run("a", [1] * 8)
    pool.task_free("a")
    assert pool.pin_prefix("system", [1] * 6) == 4
    assert counts(pool) == (2, 1, 1)
    assert not pool.task_alloc("b", [2] * 16)
    model.run("c", [2] * 12)
    pool.task_free("c")
    assert pool.prefix_len([1] * 9) == 4
    pool.unpin_prefix("system")
    assert counts(pool) == (0, 4, 0)
    model.run("d", [3] * 16)
    assert pool.prefix_len([1] * 9) == 0


def test_pinning_again_moves_the_pin(make_pool, make_model):
    pool = make_pool()
    model = make_model(pool)
    model.run("a", [1] * 8)
    model.run("b", [2] * 8)
    for task_id in ("a", "b"):
        pool.task_free(task_id)
    assert pool.pin_prefix("p", [1] * 8) == 8
    assert pool.pin_prefix("p", [1] * 8) == 8
    assert counts(pool) == (12, 2, 2)
    assert pool.pin_prefix("p", [2] * 4) == 4
    assert counts(pool) == (12, 3, 1)
    assert pool.pin_prefix("p", [3] * 4) == 0
    assert counts(pool) == (12, 4, 0)
    pool.unpin_prefix("p")


# Reset


def test_reset_forgets_everything_and_keeps_old_content_out(make_pool, make_model):
    pool = make_pool()
    model = make_model(pool)
    model.run("old", [1] * 8)
    pool.task_free("old")
    model.run("running", [2] * 9)
    pool.pin_prefix("p", [1] * 8)
    pool.reset_prefix_cache()
    assert counts(pool) == (13, 0, 3)
    assert pool.prefix_len([1] * 9) == pool.prefix_len([2] * 9) == 0
    assert model.read("running") == model.expected([2] * 9)
    assert pool.task_extend("running", 9)
    pool.task_record_hashes("running", [2] * 10)
    assert pool.task_fork("running", "fork")
    pool.task_record_hashes("fork", [2] * 10)
    assert pool.prefix_len([2] * 9) == 0
    pool.task_free("running")
    pool.task_free("fork")
    assert counts(pool) == (16, 0, 0)
    assert model.run("new", [2] * 9) == 0
    assert model.run("newer", [2] * 9) == 8


# Contiguous mode


def test_contiguous_mode_gives_each_task_its_own_region(make_pool, make_model):
    pool = make_pool(n_tokens=None, max_seq_len=10, max_batch_size=2)
    model = make_model(pool)
    assert (pool.contiguous, pool.n_tokens, pool.num_pages) == (True, 20, 2)
    assert model.run("a", range(7)) == 0
    assert model.run("b", range(7)) == 0
    assert pool.task_cached("b") == 0
    assert counts(pool) == (0, 0, 2)
    assert not pool.task_alloc("c", [1])
    assert pool.task_extend("a", 9)
    assert not pool.task_extend("a", 10)
    cache = pool.bind_tasks(["b", "a"], BindWorkspace(2, 2, "cpu"))
    assert cache.out_cache_loc.tolist() == [[16], [9]]
    assert cache.req_to_token.tolist() == [list(range(10)), list(range(10, 20))]
    pool.task_free("b")
    assert pool.prefix_len(range(7)) == 0
    assert counts(pool) == (1, 0, 1)


# Capacity, counters, events


def test_capacity_can_be_trusted(make_pool, make_model):
    pool = make_pool(n_tokens=24, max_batch_size=2)
    model = make_model(pool)
    assert pool.capacity() == Capacity(6, 0, 0, 2, 24)
    model.run("a", [1] * 9)
    pool.task_free("a")
    assert pool.capacity() == Capacity(4, 2, 0, 2, 24)
    model.run("a", [2] * 9)
    assert pool.capacity() == Capacity(1, 2, 3, 1, 12)
    assert not pool.task_alloc("b", [3] * 13)
    assert pool.task_alloc("b", [3] * 12)
    assert pool.capacity() == Capacity(0, 0, 6, 0, 0)


@pytest.mark.parametrize(("n_tokens", "longest"), [(None, 32), (64, 32), (16, 16)])
def test_the_longest_prompt_is_within_the_context(make_pool, n_tokens, longest):
    assert make_pool(n_tokens=n_tokens).capacity().max_prompt_tokens == longest


def test_counters(make_pool, make_model):
    pool = make_pool(n_tokens=24)
    model = make_model(pool)
    model.run("a", range(9))
    model.run("b", [*range(8), *range(50, 58)])
    counters = pool.counters
    assert (counters.num_page_hits, counters.num_page_misses) == (2, 3)
    assert (counters.num_tokens_reused, counters.num_evictions) == (8, 0)
    pool.task_alloc("empty", [])
    assert counters.num_page_misses == 3
    pool.task_free("a")
    pool.task_free("b")
    model.run("c", [7] * 24)
    assert (counters.num_page_misses, counters.num_evictions) == (8, 4)


def test_a_token_that_is_never_looked_for_is_no_miss(make_pool):
    pool = make_pool(page_size=1)
    pool.task_alloc("one", [5])
    pool.task_alloc("two", [6, 7])
    assert (pool.counters.num_page_hits, pool.counters.num_page_misses) == (0, 1)


def test_events_tell_what_can_be_found(make_pool, make_model):
    found = {}

    def follow(event):
        if type(event).__name__ == "PageStored":
            assert event.page not in found
            found[event.page] = (event.parent, event.token_ids, event.salt)
        else:
            assert found.pop(event.page) == (event.parent, event.token_ids, event.salt)
            assert event.page not in {parent for parent, _, _ in found.values()}

    pool = make_pool(n_tokens=24, on_event=follow)
    model = make_model(pool)
    model.run("a", range(9), "s")
    model.run("b", range(9), "s")
    (first, second) = pool._tasks.by_id["a"].pages[:2]
    assert found == {first: (-1, (0, 1, 2, 3), "s"), second: (first, (4, 5, 6, 7), "s")}
    pool.task_free("a")
    pool.task_free("b")
    model.run("c", [9] * 20)
    assert len(found) == 6
    assert found.pop(first) == (-1, (0, 1, 2, 3), "s")
    found[first] = (-1, (0, 1, 2, 3), "s")
    pool.reset_prefix_cache()
    assert found == {}


def test_an_event_callback_sees_the_operation_done_and_may_raise(make_pool, make_model):
    pool = make_pool(n_tokens=16)
    model = make_model(pool)
    model.run("a", [1] * 16)
    pool.task_free("a")

    def fail(event):
        check_invariants(pool)
        raise RuntimeError(event.page)

    pool._pages._on_event = fail
    with pytest.raises(RuntimeError):
        pool.task_alloc("b", [2] * 8)
    assert counts(pool) == (0, 2, 2)
    pool._pages._on_event = None
    pool.task_free("b")
    assert counts(pool) == (2, 2, 0)


# Maps


def test_a_map_tells_what_each_page_is_and_whose(make_pool, make_model):
    pool = make_pool(n_tokens=32)
    model = make_model(pool)
    prompt = list(range(9))
    model.run("a", prompt)
    model.run("b", prompt)
    first, second, last = pool.task_pages("a")
    assert pool.task_pages("b")[:2] == [first, second]
    states = pool.page_states()
    assert len(states) == pool.num_pages
    assert (states[first], states[second], states[last]) == (3, 3, 2)
    pool.task_free("a")
    assert pool.page_states()[first] == 2
    pool.task_free("b")
    states = pool.page_states()
    assert (states[first], states[second]) == (1, 1)
    assert sorted(states) == [0] * 6 + [1] * 2
    assert pool.task_pages("a") == []


def test_a_map_counts_up_to_254_users():
    allocator = Allocator(1)
    allocator.alloc()
    for _ in range(299):
        allocator.inc_ref(0)
    states = bytearray(1)
    allocator.write_states(states)
    assert states == b"\xff"


def test_a_map_of_a_contiguous_pool_shows_its_rows(make_pool):
    pool = make_pool(n_tokens=None)
    pool.task_alloc("a", [1, 2])
    pool.task_alloc("b", [3])
    pool.task_free("a")
    states = pool.page_states()
    assert sorted(states) == [0, 0, 0, 2]
    assert [page for page, state in enumerate(states) if state] == pool.task_pages("b")
