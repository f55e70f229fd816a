import pytest

from astrai_kvcache import Allocator, DoubleFreeError, PageStateError


def states(allocator):
    return allocator.num_free, allocator.num_cached, allocator.num_in_use


def test_pages_are_handed_out_once_and_then_minus_one():
    allocator = Allocator(3)
    assert [allocator.alloc() for _ in range(4)] == [0, 1, 2, -1]
    assert states(allocator) == (0, 0, 3)


def test_a_freed_page_is_handed_out_again():
    allocator = Allocator(2)
    allocator.alloc()
    allocator.alloc()
    allocator.free(0)
    assert allocator.ref_count(0) == 0
    assert allocator.alloc() == 0
    assert allocator.ref_count(0) == 1


def test_freeing_twice_raises_and_never_makes_two_owners():
    """B026: the second free of a page hands it to two owners."""
    allocator = Allocator(2)
    page = allocator.alloc()
    allocator.free(page)
    with pytest.raises(DoubleFreeError, match=f"Page {page} has no user"):
        allocator.free(page)
    assert states(allocator) == (2, 0, 0)
    assert {allocator.alloc(), allocator.alloc(), allocator.alloc()} == {0, 1, -1}


def test_freeing_a_cached_page_raises():
    allocator = Allocator(1)
    allocator.free(allocator.alloc(), keep_cached=True)
    with pytest.raises(DoubleFreeError):
        allocator.free(0)
    assert states(allocator) == (0, 1, 0)


def test_a_page_lives_until_its_last_user_is_gone():
    allocator = Allocator(1)
    page = allocator.alloc()
    allocator.inc_ref(page)
    allocator.free(page)
    assert allocator.ref_count(page) == 1
    assert allocator.alloc() == -1
    allocator.free(page)
    assert allocator.alloc() == page


def test_free_pages_go_before_cached_ones():
    allocator = Allocator(2)
    allocator.free(allocator.alloc(), keep_cached=True)
    assert allocator.alloc() == 1
    assert allocator.alloc() == 0
    assert states(allocator) == (0, 0, 2)


def test_cached_pages_are_evicted_least_recently_used_first():
    allocator = Allocator(3)
    evicted = []
    allocator.on_evict = evicted.append
    pages = [allocator.alloc() for _ in range(3)]
    for page in (1, 2, 0):
        allocator.free(page, keep_cached=True)
    allocator.touch(1)
    assert [allocator.alloc() for _ in pages] == [2, 0, 1]
    assert evicted == [2, 0, 1]


def test_touching_a_page_that_is_not_cached_does_nothing():
    allocator = Allocator(2)
    allocator.touch(allocator.alloc())
    allocator.touch(1)
    assert states(allocator) == (1, 0, 1)


def test_using_a_cached_page_again_keeps_it_from_eviction():
    allocator = Allocator(1)
    page = allocator.alloc()
    allocator.free(page, keep_cached=True)
    allocator.inc_ref(page)
    assert states(allocator) == (0, 0, 1)
    assert allocator.alloc() == -1


def test_a_free_page_cannot_be_shared():
    allocator = Allocator(1)
    with pytest.raises(PageStateError, match="Page 0 is free"):
        allocator.inc_ref(0)
    assert states(allocator) == (1, 0, 0)


def test_many_pages_are_all_or_nothing():
    allocator = Allocator(4)
    evicted = []
    allocator.on_evict = evicted.append
    allocator.free(allocator.alloc(), keep_cached=True)
    assert allocator.alloc_many(5) is None
    assert states(allocator) == (3, 1, 0)
    assert evicted == []
    assert sorted(allocator.alloc_many(4)) == [0, 1, 2, 3]
    assert evicted == [0]
    assert [allocator.ref_count(page) for page in range(4)] == [1, 1, 1, 1]


def test_many_pages_follow_the_page_they_continue():
    allocator = Allocator(16)
    first = allocator.alloc_many(3)
    allocator.alloc_many(3)
    assert allocator.alloc_many(2, after=first[-1]) == [first[-1] + 1, first[-1] + 2]


def test_many_pages_that_follow_none_leave_room_before_them():
    allocator = Allocator(16)
    assert allocator.alloc_many(2) == [0, 1]
    assert allocator.alloc_many(4) == [7, 8, 9, 10]


def test_a_single_page_that_follows_none_leaves_room_behind_page_zero():
    allocator = Allocator(16)
    assert allocator.alloc_many(1) == [0]
    assert allocator.alloc_many(1) == [8]


def test_the_pages_of_a_sequence_are_freed_last_first():
    allocator = Allocator(4)
    pages = allocator.alloc_many(4)
    allocator.inc_ref(2)
    allocator.free_many(pages, lambda page: page < 2)
    assert states(allocator) == (1, 2, 1)
    assert [allocator.ref_count(page) for page in pages] == [0, 0, 1, 0]
    assert list(allocator._cached) == [1, 0]
    allocator.free_many([2], lambda _: False)
    assert allocator._free.runs() == [(2, 4)]


def test_no_more_is_evicted_than_needed():
    allocator = Allocator(4)
    for page in allocator.alloc_many(3):
        allocator.free(page, keep_cached=True)
    allocator.alloc_many(2)
    assert states(allocator) == (0, 2, 2)


def test_uncaching_frees_without_an_eviction():
    allocator = Allocator(2)
    evicted = []
    allocator.on_evict = evicted.append
    allocator.free(allocator.alloc(), keep_cached=True)
    allocator.uncache(0)
    assert states(allocator) == (2, 0, 0)
    assert evicted == []
    with pytest.raises(PageStateError, match="Page 0 is not cached"):
        allocator.uncache(0)


def test_a_page_is_still_cached_while_its_eviction_is_told():
    allocator = Allocator(1)
    seen = []
    allocator.on_evict = lambda page: seen.append((page, *states(allocator)))
    allocator.free(allocator.alloc(), keep_cached=True)
    allocator.alloc()
    assert seen == [(0, 0, 1, 0)]


def test_an_allocator_without_pages():
    allocator = Allocator(0)
    assert allocator.alloc() == -1
    assert allocator.alloc_many(0) == []
    assert allocator.alloc_many(1) is None
