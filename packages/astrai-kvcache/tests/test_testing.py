import pytest

from astrai_kvcache import HostTier
from astrai_kvcache.testing import InvariantError, check_invariants


@pytest.fixture
def pool(make_pool, make_model):
    """One task that shares two pages with the cache, a pin, two cached pages, free pages."""
    pool = make_pool(tiers=[HostTier(10_000)], fingerprint="model")
    model = make_model(pool)
    model.run("old", [1] * 9)
    pool.task_free("old")
    model.run("task", [2] * 9)
    model.run("pinned", [3] * 8)
    pool.pin_prefix("pin", [3] * 8)
    pool.task_free("pinned")
    pool._table.flush()
    check_invariants(pool)
    return pool


def task(pool):
    return pool._tasks.by_id["task"]


def allocator(pool):
    return pool._pages.allocator


def prefix(pool):
    return pool._pages.prefix


def cached_leaf(pool):
    return next(iter(allocator(pool)._cached))


def break_by_losing_a_free_page(pool):
    allocator(pool)._free.take_one()


def break_by_freeing_a_cached_page(pool):
    allocator(pool)._free.add(cached_leaf(pool))


def break_by_a_negative_count(pool):
    start, _ = allocator(pool)._free.runs()[0]
    allocator(pool)._free.take(1, after=start - 1)
    allocator(pool)._refs[start] = -1


def break_by_splitting_a_free_run(pool):
    free = allocator(pool)._free
    start, end = max(free.runs(), key=lambda run: run[1] - run[0])
    free._remove(start)
    free._insert(start, start + 1)
    free._insert(start + 1, end)


def break_by_miscounting_free_pages(pool):
    allocator(pool)._free.num_pages += 1


def break_by_a_use_too_many(pool):
    allocator(pool).inc_ref(task(pool).pages[0])


def break_by_naming_a_page_twice(pool):
    task(pool).pages[1] = task(pool).pages[0]


def break_by_caching_an_unfindable_page(pool):
    prefix(pool).evict(cached_leaf(pool))


def break_by_freeing_a_findable_page(pool):
    allocator(pool).uncache(cached_leaf(pool))


def break_by_forgetting_a_parent(pool):
    del prefix(pool)._nodes[prefix(pool).parent_of(cached_leaf(pool))]


def break_by_forgetting_a_parent_in_use(pool):
    del prefix(pool)._nodes[pool._pages.pins["pin"][0]]


def break_by_crossing_salts(pool):
    prefix(pool)._nodes[task(pool).pages[1]].salt = "other"


def break_by_evicting_the_parent_first(pool):
    allocator(pool).touch(cached_leaf(pool))


def break_by_using_a_page_without_its_parent(pool):
    leaf = cached_leaf(pool)
    allocator(pool).inc_ref(leaf)
    pool._pages.pins["leaf"] = [leaf]


def break_by_recording_off_the_path(pool):
    task(pool).pages.reverse()


def break_by_pinning_off_the_path(pool):
    pool._pages.pins["pin"].reverse()


def break_by_a_child_that_does_not_know_its_parent(pool):
    nodes = prefix(pool)._nodes
    first, second = task(pool).pages[:2]
    nodes[first].children[b""] = nodes[pool._pages.pins["pin"][1]]
    assert nodes[second].parent is nodes[first]


def offload(pool):
    return pool._pages.offload


def break_by_losing_what_a_page_is_kept_by(pool):
    del offload(pool)._by_page[cached_leaf(pool)]


def break_by_keeping_a_page_by_another_prefix(pool):
    kept_by, (first, second) = offload(pool)._by_page, task(pool).pages[:2]
    kept_by[second] = kept_by[first]


def break_by_keeping_a_page_by_other_tokens(pool):
    kept_by, (first, second) = offload(pool)._by_page, task(pool).pages[:2]
    kept_by[second] = offload(pool)._prefixes.child(kept_by[first], b"other")


def break_by_keeping_what_cannot_be_found(pool):
    kept_by = offload(pool)._by_page
    kept_by[allocator(pool)._free.runs()[0][0]] = kept_by[task(pool).pages[0]]


def break_by_sharing_a_row(pool):
    pool._table.free_slots.append(task(pool).row)


def break_by_a_wrong_row_state(pool):
    pool._table._is_free[task(pool).row] = True


def break_by_a_length_without_pages(pool):
    task(pool).length = 13


def break_by_miscounting_slots(pool):
    task(pool).num_slots -= 1


def break_by_a_length_beyond_the_context(pool):
    task(pool).length = 33


def break_by_caching_the_last_token(pool):
    task(pool).num_cached = 3


def break_by_a_wrong_slot(pool):
    pool._table.write((task(pool).row, 5), 0)


def break_by_a_wrong_page(pool):
    pool._table.write_pages(task(pool).row, 1, [0])


def break_by_writing_a_shared_page(pool):
    task(pool).num_shared = 1


BREAKS = {
    break_by_losing_a_free_page: "are not each page once",
    break_by_freeing_a_cached_page: "are not each page once",
    break_by_a_negative_count: "fewer than no users",
    break_by_splitting_a_free_run: "are not merged",
    break_by_miscounting_free_pages: "differ from the pages themselves",
    break_by_a_use_too_many: "counts 2 users but has 1",
    break_by_naming_a_page_twice: "names a page twice",
    break_by_caching_an_unfindable_page: "are cached but cannot be found",
    break_by_freeing_a_findable_page: "can be found but is free",
    break_by_forgetting_a_parent: "are cached but cannot be found",
    break_by_forgetting_a_parent_in_use: "can be found without the page it continues",
    break_by_crossing_salts: "crosses salts",
    break_by_evicting_the_parent_first: "would be evicted after the page it continues",
    break_by_using_a_page_without_its_parent: "more users than the page it continues",
    break_by_recording_off_the_path: "of task 'task' are not one path",
    break_by_pinning_off_the_path: "of pin 'pin' are not one path",
    break_by_a_child_that_does_not_know_its_parent: "children that do not know it",
    break_by_losing_what_a_page_is_kept_by: "has lost what it is kept by",
    break_by_keeping_a_page_by_another_prefix: "by other tokens than its own",
    break_by_keeping_a_page_by_other_tokens: "by other tokens than its own",
    break_by_keeping_what_cannot_be_found: "a page that cannot be found would be kept",
    break_by_sharing_a_row: "are not each row once",
    break_by_a_wrong_row_state: "differs from the list of free rows",
    break_by_a_length_without_pages: "has too few pages",
    break_by_miscounting_slots: "has 12 slots, not 11",
    break_by_a_length_beyond_the_context: "has 33 tokens",
    break_by_caching_the_last_token: "had its last token cached",
    break_by_a_wrong_slot: "does not name page",
    break_by_a_wrong_page: "does not name page",
    break_by_writing_a_shared_page: "which others may read",
}


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_each_broken_promise_is_found(pool, damage):
    """B013: an integrity check that checks nothing."""
    damage(pool)
    with pytest.raises(InvariantError, match=BREAKS[damage]):
        check_invariants(pool)


def test_nothing_is_cached_without_a_prefix_cache(make_pool):
    pool = make_pool(prefix_cache=False)
    check_invariants(pool)
    allocator(pool).free(allocator(pool).alloc(), keep_cached=True)
    with pytest.raises(InvariantError, match="without a prefix cache"):
        check_invariants(pool)


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (lambda pool: pool._table.write((0, 0), 1), "the row of task 'task' is not its"),
        (lambda pool: task(pool).pages.append(0), "has pages in contiguous mode"),
        (lambda pool: setattr(task(pool), "length", -1), "has -1 tokens"),
    ],
)
def test_contiguous_rows_are_checked(make_pool, damage, broken):
    pool = make_pool(n_tokens=None)
    pool.task_alloc("task", [1])
    check_invariants(pool)
    damage(pool)
    with pytest.raises(InvariantError, match=broken):
        check_invariants(pool)


def test_a_wrong_page_is_found_before_it_is_written(far_tables, make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(5))
    pool._table.write_pages(pool._tasks.by_id["a"].row, 1, [0])
    with pytest.raises(InvariantError, match="does not name page"):
        check_invariants(pool)


def test_checking_leaves_pending_writes_pending(far_tables, make_pool):
    pool = make_pool()
    pool.task_alloc("a", range(5))
    pending = dict(pool._table._pending)
    assert pending
    check_invariants(pool)
    assert pool._table._pending == pending
