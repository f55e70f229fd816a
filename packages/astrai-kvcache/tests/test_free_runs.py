from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_kvcache.free_runs import FreeRuns


def test_a_first_task_gets_the_first_pages_in_order():
    assert FreeRuns(8).take(5, after=None) == [0, 1, 2, 3, 4]


def test_single_pages_come_from_the_smallest_run():
    runs = FreeRuns(8)
    runs.take(8, after=None)
    for page in (1, 4, 5, 6):
        runs.add(page)
    assert [runs.take_one() for _ in range(4)] == [1, 4, 5, 6]


def test_a_task_grows_in_place_when_the_next_pages_are_free():
    runs = FreeRuns(64)
    first = runs.take(4, after=None)
    second = runs.take(4, after=None)
    assert runs.take(3, after=first[-1]) == [first[-1] + 1, first[-1] + 2, first[-1] + 3]
    assert runs.take(1, after=second[-1]) == [second[-1] + 1]


def test_a_task_on_page_zero_grows_in_place():
    runs = FreeRuns(8)
    runs.take(1, after=None)
    assert runs.take(2, after=0) == [1, 2]


def test_growth_continues_elsewhere_when_the_run_behind_is_too_short():
    runs = FreeRuns(8)
    runs.take(8, after=None)
    for page in (2, 5, 6, 7):
        runs.add(page)
    assert runs.take(3, after=1) == [2, 5, 6]


def test_new_tasks_start_in_the_middle_of_the_room_so_that_all_can_grow():
    runs = FreeRuns(100)
    runs.take(10, after=None)
    assert runs.take(10, after=None) == list(range(50, 60))
    assert runs.runs() == [(10, 50), (60, 100)]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_run_without_room_to_spare_is_taken_from_its_start(count):
    runs = FreeRuns(12)
    runs.take(12, after=None)
    for page in (1, 2, 3, 6, 7, 8, 9):
        runs.add(page)
    assert runs.take(count, after=None) == [6, 7, 8, 9, 2][:count]


def test_largest_runs_first_keeps_the_pieces_few():
    runs = FreeRuns(10)
    runs.take(10, after=None)
    for page in (0, 2, 4, 5, 6, 7, 9):
        runs.add(page)
    assert runs.take(5, after=None)[:4] == [4, 5, 6, 7]


def test_neighbours_merge_on_both_sides():
    runs = FreeRuns(5)
    runs.take(5, after=None)
    runs.add(1)
    runs.add(3)
    assert runs.runs() == [(1, 2), (3, 4)]
    runs.add(2)
    assert runs.runs() == [(1, 4)]
    assert runs.num_pages == 3


def test_pages_that_come_one_before_the_other_are_returned_as_one_run(monkeypatch):
    runs = FreeRuns(12)
    runs.take(12, after=None)
    added, original = [], runs._add_run
    monkeypatch.setattr(runs, "_add_run", lambda *run: added.append(run) or original(*run))
    runs.add_many([11, 10, 9, 7, 4, 3, 1])
    assert added == [(9, 12), (7, 8), (3, 5), (1, 2)]
    assert runs.runs() == [(1, 2), (3, 5), (7, 8), (9, 12)]
    assert runs.num_pages == 7
    added.clear()
    runs.add_many([0])
    runs.add_many([])
    assert added == [(0, 1)]
    assert runs.runs()[0] == (0, 2)


@pytest.mark.parametrize("after", [None, 0, 3])
def test_taking_nothing_takes_nothing(after):
    runs = FreeRuns(4)
    assert runs.take(0, after=after) == []
    assert runs.runs() == [(0, 4)]


def test_no_pages_at_all():
    assert FreeRuns(0).runs() == []


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), max_size=60))
def test_it_behaves_as_a_set(num_pages, steps):
    runs, free, taken = FreeRuns(num_pages), set(range(num_pages)), []
    for count, choice in steps:
        if count <= len(free) and choice % 2:
            pages = runs.take(count, after=choice if choice < num_pages else None)
            assert len(pages) == count == len(set(pages))
            assert free.issuperset(pages)
            free.difference_update(pages)
            taken.extend(pages)
        elif taken:
            page = taken.pop(choice % len(taken))
            runs.add(page)
            free.add(page)
        assert runs.num_pages == len(free)
        assert {p for start, end in runs.runs() for p in range(start, end)} == free
        assert all(a[1] < b[0] for a, b in pairwise(runs.runs()))
