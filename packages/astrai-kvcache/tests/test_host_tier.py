import pytest
import torch

from astrai_kvcache import HostTier, InvalidArgumentError, PageKV
from astrai_kvcache.tiers import Prefixes

PREFIXES = Prefixes("m")


def prefix(token, salt=None):
    return PREFIXES.child(PREFIXES.root(salt), bytes([token] * 8))


def page(value, num_tokens=1):
    keys = torch.full((1, num_tokens, 1, 1), value, dtype=torch.float64)
    return PageKV(keys, -keys)


PAGE_BYTES = 2 * 8 + 8  # one float64 each for K and V, one token


def test_a_page_comes_back_by_what_it_was_put_under():
    tier = HostTier(1000)
    stored, key = page(1), prefix(1)
    tier.put(key, stored)
    assert tier.get(key) is stored
    assert key in tier
    assert tier.get(prefix(2)) is None
    assert prefix(2) not in tier
    assert (len(tier), tier.num_bytes) == (1, PAGE_BYTES)


def test_salts_never_share():
    """B007: put with salt "a", get with salt "b"."""
    tier = HostTier(1000)
    key = prefix(1, "a")
    tier.put(key, page(1))
    assert tier.get(prefix(1, "b")) is tier.get(prefix(1)) is None
    assert prefix(1, "b") not in tier
    assert prefix(1, "a") in tier


def test_the_least_recently_used_page_goes_first():
    tier, keys = HostTier(2 * PAGE_BYTES), [prefix(i) for i in range(3)]
    tier.put(keys[0], page(0))
    tier.put(keys[1], page(1))
    assert tier.touch(keys[0])
    assert tier.get(keys[1]) is not None  # reading is not using
    tier.put(keys[2], page(2))
    assert [key in tier for key in keys] == [True, False, True]
    assert (len(tier), tier.num_bytes) == (2, 2 * PAGE_BYTES)


def test_the_first_content_stays_and_becomes_young():
    tier, keys = HostTier(2 * PAGE_BYTES), [prefix(i) for i in range(3)]
    first = page(0)
    tier.put(keys[0], first)
    tier.put(keys[1], page(1))
    tier.put(keys[0], page(9))
    tier.put(keys[2], page(2))
    assert tier.get(keys[0]) is first
    assert keys[1] not in tier


def test_a_page_that_can_never_fit_pushes_nothing_out():
    tier, small, large = HostTier(2 * PAGE_BYTES), prefix(1), prefix(2)
    tier.put(small, page(1))
    tier.put(large, page(2, num_tokens=3))
    assert (small in tier, large in tier) == (True, False)
    exact = HostTier(PAGE_BYTES)
    exact.put(small, page(1))
    assert small in exact


def test_clearing():
    tier, key = HostTier(100), prefix(1)
    tier.put(key, page(1))
    tier.clear()
    assert key not in tier
    assert not tier.touch(key)
    assert tier.get(key) is None
    assert (len(tier), tier.num_bytes) == (0, 0)


def test_a_tier_without_room_is_refused():
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        HostTier(0)
