import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_kvcache import PageStateError, PrefixCache, page_hash


def test_a_prefix_is_found_page_by_page():
    cache = PrefixCache(2)
    for logical, page in enumerate((7, 3, 5)):
        cache.record(page, [1, 2, 3, 4, 5, 6], logical)
    assert cache.lookup([1, 2, 3, 4, 5, 6, 7]) == [7, 3, 5]
    assert cache.lookup([1, 2, 3, 4, 5]) == [7, 3]
    assert cache.lookup([1, 2, 9, 9, 5, 6]) == [7]
    assert cache.lookup([9, 9]) == []
    assert cache.has_page(3)
    assert not cache.has_page(4)
    assert len(cache) == 3


def test_identical_pages_within_a_prompt_are_different_content():
    """B002: the second copy has K/V of other positions."""
    tokens = [1, 2, 3, 4, 1, 2, 3, 4]
    cache = PrefixCache(4)
    cache.record(0, tokens, 0)
    assert cache.lookup(tokens) == [0]
    cache.record(1, tokens, 1)
    assert cache.lookup([*tokens, 7]) == [0, 1]


def test_equal_pages_after_different_prefixes_are_different_content():
    cache = PrefixCache(1)
    cache.record(0, [1, 5], 0)
    cache.record(1, [1, 5], 1)
    cache.record(2, [2, 5], 0)
    assert cache.lookup([2, 5]) == [2]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([0, 31], [1, 0]),  # equal under the polynomial 31 * a + b
        ([-1, 0], [-2, 0]),  # hash(-1) == hash(-2) in Python
        ([2**61 - 1, 0], [0, 0]),  # integers hash modulo 2**61 - 1
        ([1, 2], [2, 1]),
    ],
)
def test_tokens_that_collide_under_a_hash_are_told_apart(ours, theirs):
    """B029, B004: two pages forced to one hash; nothing but equal tokens is a hit."""
    cache = PrefixCache(2)
    cache.record(0, ours, 0)
    assert cache.lookup(theirs) == []
    cache.record(1, theirs, 0)
    assert cache.lookup(theirs) == [1]
    assert cache.lookup(ours) == [0]


def test_the_hash_plays_no_part_in_a_hit(monkeypatch):
    """B004: with a constant for a hash, different prompts still miss."""
    monkeypatch.setattr("astrai_kvcache.prefix_cache.page_hash", lambda *_: 0)
    cache = PrefixCache(4)
    cache.record(0, [1, 2, 3, 4], 0)
    assert cache.lookup([4, 3, 2, 1]) == []


def test_a_prefix_shorter_than_a_page_is_neither_recorded_nor_found():
    """B014: a key cut to nothing matches anything."""
    cache = PrefixCache(16)
    cache.record(0, [1, 2, 3, 4, 5], 0)
    assert len(cache) == 0
    assert cache.lookup([1, 2, 3, 4, 5]) == []
    assert cache.lookup([]) == []


def test_the_first_page_wins():
    """B011: two pages with the same content; evicting one must not touch the other's entry."""
    cache = PrefixCache(2)
    cache.record(0, [1, 2], 0)
    cache.record(1, [1, 2], 0)
    assert cache.lookup([1, 2]) == [0]
    assert not cache.has_page(1)
    cache.evict(1)
    assert cache.lookup([1, 2]) == [0]
    cache.evict(0)
    assert cache.lookup([1, 2]) == []
    assert len(cache) == 0


def test_recording_again_changes_nothing():
    cache = PrefixCache(1)
    cache.record(0, [1, 2], 0)
    cache.record(1, [1, 2], 1)
    cache.record(0, [1, 2], 0)
    assert cache.lookup([1, 2]) == [0, 1]


def test_recording_a_page_in_the_middle_again_keeps_what_hangs_below():
    cache = PrefixCache(1)
    for _ in range(2):
        for logical in (2, 1, 0) if len(cache) else (0, 1, 2):
            cache.record(logical, [1, 2, 3], logical)
    assert cache.lookup([1, 2, 3]) == [0, 1, 2]


def test_a_page_with_new_content_loses_the_old_and_what_hung_below():
    cache = PrefixCache(1)
    for logical in range(3):
        cache.record(logical, [1, 2, 3], logical)
    cache.record(1, [1, 9], 1)
    assert cache.lookup([1, 2, 3]) == [0]
    assert cache.lookup([1, 9]) == [0, 1]
    assert not cache.has_page(2)


def test_a_page_is_not_recorded_below_itself():
    cache = PrefixCache(1)
    cache.record(0, [1, 1], 0)
    cache.record(0, [1, 1], 1)
    assert len(cache) == 0


def test_nothing_is_recorded_behind_a_gap():
    cache = PrefixCache(1)
    cache.record(0, [1, 2], 1)
    assert len(cache) == 0


def test_salts_never_share():
    """B005: an adapter must not share with a salt of the same name; tuples keep them apart."""
    cache = PrefixCache(1)
    cache.record(0, [1], 0, salt="a")
    cache.record(1, [1], 0, salt=("a", None))
    cache.record(2, [1], 0)
    assert cache.lookup([1], salt="a") == [0]
    assert cache.lookup([1], salt=("a", None)) == [1]
    assert cache.lookup([1], salt="b") == []
    assert cache.lookup([1], salt="") == cache.lookup([1]) == [2]
    assert cache.salt_of(1) == ("a", None)


def test_evicting_forgets_the_pages_below():
    cache = PrefixCache(1)
    for page, tokens in enumerate(([1], [1, 2], [1, 2, 3], [1, 4], [5])):
        cache.record(page, tokens, len(tokens) - 1)
    cache.evict(1)
    assert cache.lookup([1, 2, 3]) == [0]
    assert cache.pages() == [0, 3, 4]
    cache.evict(9)
    assert len(cache) == 3


def test_unused_salts_take_no_memory():
    cache = PrefixCache(1)
    for salt in range(100):
        cache.record(0, [salt], 0, salt=str(salt))
    assert len(cache._roots) == 1
    cache.evict(0)
    assert not cache._roots


def test_clearing_forgets_everything():
    cache = PrefixCache(1)
    cache.record(0, [1], 0)
    cache.clear()
    assert len(cache) == 0
    assert cache.lookup([1]) == []


def test_what_a_page_holds_can_be_asked():
    cache = PrefixCache(2)
    cache.record(4, [1, -2, 3, 2**40], 0)
    cache.record(6, [1, -2, 3, 2**40], 1)
    assert cache.tokens_of(6) == (3, 2**40)
    assert cache.parent_of(6) == 4
    assert cache.parent_of(4) == -1


def test_inserting_a_page_that_is_recorded_elsewhere_raises():
    cache = PrefixCache(1)
    cache.insert(None, [1], 0)
    with pytest.raises(PageStateError, match="Page 0 is recorded with other tokens"):
        cache.insert(None, [2], 0, salt="new")
    assert cache.lookup([1]) == [0]
    assert set(cache._roots) == {None}


def test_inserting_returns_the_page_that_holds_the_content():
    cache = PrefixCache(1)
    assert cache.insert(None, [1], 0, salt="a") == 0
    assert cache.insert(None, [1], 1, salt="a") == 0
    assert cache.insert(0, [2], 1) == 1
    assert cache.lookup([1, 2], salt="a") == [0, 1]


@given(
    st.integers(1, 3),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), max_size=12),
    st.lists(st.integers(0, 1), max_size=9),
)
def test_it_finds_what_a_dict_of_whole_prefixes_finds(page_size, sequences, query):
    cache, expected = PrefixCache(page_size), {}
    page = 0
    for tokens in sequences:
        for logical in range(len(tokens) // page_size):
            cache.record(page, tokens, logical)
            expected.setdefault(tuple(tokens[: (logical + 1) * page_size]), page)
            page += 1
    hits = []
    for end in range(page_size, len(query) + 1, page_size):
        if tuple(query[:end]) not in expected:
            break
        hits.append(expected[tuple(query[:end])])
    assert cache.lookup(query) == hits


def test_page_hash_covers_the_whole_prefix():
    tokens = [1, 2, 3, 4, 5, 6]
    assert page_hash(tokens, 1, 2) == page_hash([1, 2, 3, 4], 1, 2)
    assert page_hash(tokens, 1, 2) == page_hash(tokens, 0, 4)
    assert page_hash(tokens, 1, 2) != page_hash([9, 2, 3, 4], 1, 2)
    assert page_hash(tokens, 1, 2) != page_hash(tokens, 2, 2)
    assert page_hash(tokens, 1, 4) == page_hash(tokens, 5, 1)
    assert 0 <= page_hash(tokens, 0, 1) < 2**64


def test_page_hash_is_the_same_in_every_process():
    assert page_hash([1, 2, 3], 0, 3) == 13041116711478803063
