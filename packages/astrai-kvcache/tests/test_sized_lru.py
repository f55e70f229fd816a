import pytest

from astrai_kvcache import InvalidArgumentError
from astrai_kvcache.sized_lru import SizedLru


def filled(**sizes):
    lru = SizedLru(10)
    for key, size in sizes.items():
        assert lru.add(key, size) == []
    return lru


def test_the_least_recently_used_goes_first():
    lru = filled(a=3, b=3, c=3)
    assert lru.touch("a")
    assert lru.add("d", 3) == ["b"]
    assert lru.add("e", 4) == ["c"]
    assert [key in lru for key in "abcde"] == [True, False, False, True, True]


def test_the_bound_is_reached_and_never_passed():
    lru = filled(a=3, b=7)
    assert lru.num_bytes == 10
    assert lru.add("c", 1) == ["a"]
    assert lru.num_bytes == 8
    assert lru.add("d", 10) == ["b", "c"]
    assert (lru.num_bytes, len(lru)) == (10, 1)


def test_asking_changes_nothing_and_touching_what_is_not_there_neither():
    lru = filled(a=5, b=5)
    assert "a" in lru
    assert not lru.touch("x")
    assert lru.add("c", 1) == ["a"]


def test_removing_makes_room_once():
    lru = filled(a=5, b=5)
    lru.remove("a")
    lru.remove("a")
    assert lru.num_bytes == 5
    assert lru.add("c", 5) == []


def test_clearing_tells_what_was_there():
    lru = filled(a=5, b=5)
    assert lru.clear() == ["a", "b"]
    assert (lru.num_bytes, len(lru)) == (0, 0)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_no_room_at_all_is_refused(max_bytes):
    with pytest.raises(InvalidArgumentError, match=f"at least 1, not {max_bytes}"):
        SizedLru(max_bytes)
    assert SizedLru(1).max_bytes == 1
