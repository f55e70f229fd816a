import gc
from enum import StrEnum

import pytest
import torch

from astrai_kvcache import PageKV
from astrai_kvcache.prefix_cache import token_bytes
from astrai_kvcache.tiers import Prefixes


def chain(prefixes, *pages, salt=None):
    prefix = prefixes.root(salt)
    for tokens in pages:
        prefix = prefixes.child(prefix, token_bytes(tokens))
    return prefix


def test_equal_content_is_the_same_object():
    prefixes = Prefixes("m")
    ours = chain(prefixes, [1, 2], [3, 4])
    assert chain(prefixes, [1, 2], [3, 4]) is ours
    assert chain(prefixes, [3, 4]) is not ours
    assert chain(prefixes, [1, 2], [3, 4], salt="a") is not ours
    assert chain(prefixes, [1, 2]) is ours.parent


def test_a_prefix_knows_all_its_tokens():
    prefix = chain(Prefixes("m"), [1, 2], [-3, 2**40])
    assert prefix.tokens == token_bytes([-3, 2**40])
    assert prefix.all_tokens() == token_bytes([1, 2, -3, 2**40])
    assert (prefix.fingerprint, prefix.salt) == ("m", "None")


def test_digests_are_short_names_for_everything():
    same = [chain(Prefixes("m"), [1, 2], [3, 4], salt="a").digest for _ in range(2)]
    assert same[0] == same[1]
    assert len(same[0]) == 32
    others = [
        chain(Prefixes("n"), [1, 2], [3, 4], salt="a"),
        chain(Prefixes("m"), [1, 2], [3, 4], salt="b"),
        chain(Prefixes("m"), [9, 2], [3, 4], salt="a"),
        chain(Prefixes("m"), [1, 2], [3, 5], salt="a"),
        chain(Prefixes("m"), [3, 4], salt="a"),
    ]
    assert len({same[0], *(prefix.digest for prefix in others)}) == 6


class Tenant(StrEnum):
    A = "a"


@pytest.mark.parametrize("salt", ["a", b"a", 1, True, ("a", None), ("a", ("b", 2)), ()])
def test_salts_that_mean_the_same_everywhere(salt):
    """B005, B007: a salt is told apart from all others, by type and by structure."""
    prefixes = Prefixes("m")
    assert prefixes.root(salt).salt == repr(salt)


@pytest.mark.parametrize("salt", [1.0, object(), Tenant.A, frozenset("a"), ("a", Tenant.A)])
def test_salts_that_mean_something_only_here_stay_out_of_the_tiers(salt):
    assert Prefixes("m").root(salt) is None


def test_no_salt_has_two_names():
    prefixes = Prefixes("m")
    assert prefixes.root("") is prefixes.root(None)


def test_prefixes_that_nobody_holds_take_no_memory():
    prefixes = Prefixes("m")
    held = chain(prefixes, [1], [2])
    chain(prefixes, [1], [3], [4])
    gc.collect()
    assert len(prefixes._children) == 2
    del held
    gc.collect()
    assert len(prefixes._children) == len(prefixes._roots) == 0


def test_a_very_long_prefix_can_be_dropped():
    prefixes = Prefixes("m")
    prefix = chain(prefixes, *([i] for i in range(100_000)))
    assert len(prefix.all_tokens()) == 800_000
    del prefix
    gc.collect()
    assert not prefixes._children


def test_size_of_a_page():
    keys = torch.zeros(2, 4, 1, 3, dtype=torch.float16)
    assert PageKV(keys, keys).num_bytes == 2 * 2 * 4 * 3 * 2
