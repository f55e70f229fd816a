import pytest
import torch

from astrai_kvcache import (
    HostTier,
    InvalidArgumentError,
    PageEvicted,
    PageKV,
    PageStored,
)
from astrai_kvcache.disk_tier import DiskTier
from astrai_kvcache.testing import check_invariants

PAGE_BYTES = 2 * 2 * 4 * 8 + 4 * 8  # K and V, layers, tokens, float64; and the tokens


class Spy:
    """A tier that counts what it is asked for."""

    def __init__(self, tier):
        self.tier = tier
        self.calls = []

    def __contains__(self, prefix):
        return prefix in self.tier

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.tier, name)


@pytest.fixture
def host():
    return HostTier(100 * PAGE_BYTES)


@pytest.fixture
def make_tiered(make_pool, make_model):
    """A pool of 6 pages with tiers, and a model that agrees with all others on K/V."""
    numbers = {}

    def make(*tiers, fingerprint="m", **changes):
        settings = {"n_tokens": 24, "tiers": tiers, "fingerprint": fingerprint, **changes}
        model = make_model(make_pool(**settings))
        model._numbers = numbers
        return model

    return make


def push_out(model):
    """Evict everything."""
    assert model.pool.task_alloc("filler", [], num_tokens=model.pool.n_tokens)
    model.pool.task_free("filler")
    check_invariants(model.pool)


def run(model, task_id, tokens, salt=None):
    cached = model.run(task_id, tokens, salt)
    check_invariants(model.pool)
    model.pool.task_free(task_id)
    check_invariants(model.pool)
    return cached


PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 9]


def test_an_evicted_prefix_comes_back(make_tiered, host):
    model = make_tiered(host)
    assert run(model, "a", PROMPT) == 0
    assert len(host) == 0
    push_out(model)
    assert len(host) == 2
    assert model.pool.num_cached_pages == 0
    assert model.pool.prefix_len(PROMPT) == 8
    assert run(model, "b", PROMPT) == 8
    assert model.pool.num_cached_pages == 2
    assert model.pool.counters.num_page_restores == 2
    assert model.pool.counters.num_page_hits == 2
    assert model.pool.counters.num_tokens_reused == 8


def test_a_prefix_is_put_together_from_pool_and_tiers(make_tiered, host):
    model = make_tiered(host)
    run(model, "a", PROMPT)
    assert model.pool.task_alloc("x", [], num_tokens=20)  # evicts the leaf alone
    model.pool.task_free("x")
    assert (len(host), model.pool.num_cached_pages) == (1, 1)
    assert model.pool.prefix_len(PROMPT) == 8
    assert run(model, "b", PROMPT) == 8
    assert model.pool.counters.num_page_restores == 1


def test_what_is_behind_a_gap_is_not_found(make_tiered):
    host = HostTier(PAGE_BYTES)  # the first page of the prompt pushes out the second
    model = make_tiered(host)
    run(model, "a", PROMPT)
    push_out(model)
    assert len(host) == 1
    assert model.pool.prefix_len(PROMPT) == 4
    assert run(model, "b", PROMPT) == 4


def test_the_last_token_is_always_computed(make_tiered, host):
    model = make_tiered(host)
    run(model, "a", PROMPT[:8])
    push_out(model)
    assert model.pool.prefix_len(PROMPT[:8]) == 4
    assert run(model, "b", PROMPT[:8]) == 4
    assert model.pool.task_alloc("c", PROMPT, num_tokens=8)
    assert model.pool.task_cached("c") == 4
    assert len(model.pool._tasks.by_id["c"].pages) == 2


@pytest.mark.parametrize("where", ["host", "disk"])
def test_salts_never_share_at_any_tier(make_tiered, host, tmp_path, where):
    """B007: a salt that is dropped on the way to a second tier shares across tenants."""
    model = make_tiered(host if where == "host" else DiskTier(tmp_path, 100_000))
    run(model, "a", PROMPT, salt="a")
    push_out(model)
    for salt in ("b", None, ("a",)):
        assert model.pool.prefix_len(PROMPT, salt=salt) == 0
        assert run(model, "other", PROMPT, salt=salt) == 0
        push_out(model)
    assert run(model, "again", PROMPT, salt="a") == 8


def test_a_salt_without_a_lasting_name_is_shared_in_the_pool_alone(make_tiered, host):
    model, salt = make_tiered(host), object()
    run(model, "a", PROMPT, salt)
    assert run(model, "b", PROMPT, salt) == 8
    push_out(model)
    assert len(host) == 0
    assert model.pool.prefix_len(PROMPT, salt=salt) == 0


def test_a_restart_finds_what_was_evicted_and_what_was_saved(make_tiered, tmp_path):
    model = make_tiered(DiskTier(tmp_path, 100_000))
    run(model, "a", PROMPT)
    push_out(model)
    other = [5] * 9
    assert model.run("b", other) == 0
    model.pool.save_prefix_cache()
    restarted = make_tiered(DiskTier(tmp_path, 100_000))
    assert run(restarted, "a", PROMPT) == 8
    assert run(restarted, "b", other) == 8
    assert restarted.pool.counters.num_page_restores == 4


@pytest.mark.parametrize(
    "changes",
    [{"fingerprint": "another"}, {"dtype": torch.float32}, {"n_kv_heads": 2}, {"n_layers": 3}],
)
def test_pages_of_another_model_are_not_found(make_tiered, tmp_path, changes):
    model = make_tiered(DiskTier(tmp_path, 100_000))
    run(model, "a", PROMPT)
    model.pool.save_prefix_cache()
    other = make_tiered(DiskTier(tmp_path, 100_000), **changes)
    assert other.pool.prefix_len(PROMPT) == 0
    assert other.pool.task_alloc("a", PROMPT)
    assert other.pool.task_cached("a") == 0


def test_a_truncated_file_ends_the_hit(make_tiered, tmp_path, caplog):
    model = make_tiered(DiskTier(tmp_path, 100_000))
    run(model, "a", PROMPT)
    model.pool.save_prefix_cache()
    second, first = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    restarted = make_tiered(DiskTier(tmp_path, 100_000))
    second.write_bytes(second.read_bytes()[:-8])
    assert restarted.pool.prefix_len(PROMPT) == 8
    assert run(restarted, "a", PROMPT) == 4
    assert "is ignored" in caplog.text
    assert list(tmp_path.iterdir()) == [first]


def test_a_page_goes_to_every_tier_and_comes_from_the_first(make_tiered, host, tmp_path):
    first, second = Spy(host), Spy(DiskTier(tmp_path, 100_000))
    model = make_tiered(first, second)
    run(model, "a", PROMPT)
    push_out(model)
    assert len(first.tier) == len(second.tier) == 2
    second.calls.clear()
    assert run(model, "b", PROMPT) == 8
    assert "get" not in second.calls
    host.clear()
    push_out(model)
    assert len(host) == 2
    host.clear()
    assert run(model, "c", PROMPT) == 8
    assert second.calls.count("get") == 2


def test_a_page_is_copied_once(make_tiered, host, monkeypatch):
    model, read = make_tiered(host), []
    original = model.pool.storage.read
    monkeypatch.setattr(
        model.pool.storage, "read", lambda *args: read.append(args) or original(*args)
    )
    for _ in range(3):
        run(model, "a", PROMPT)
        push_out(model)
    assert len(read) == 2


def test_pages_in_tiers_are_evicted_leaves_first(make_tiered):
    host = HostTier(4 * PAGE_BYTES)
    model = make_tiered(host)
    old, new = [1] * 9, [2] * 9
    for prompt in (old, new, old):  # the second time, old comes back from the tier
        run(model, "a", prompt)
        push_out(model)
    run(model, "a", [3] * 5)
    push_out(model)
    assert model.pool.prefix_len(new) == 4
    assert model.pool.prefix_len(old) == 8


def test_what_comes_back_is_young_in_every_tier(make_tiered):
    host = HostTier(4 * PAGE_BYTES)
    model = make_tiered(host)
    for prompt in ([1] * 9, [2] * 9):
        run(model, "a", prompt)
        push_out(model)
    assert model.pool.task_alloc("held", [1] * 9)
    assert model.pool.task_cached("held") == 8
    run(model, "b", [3] * 9)
    assert model.pool.task_extend("held", 23)  # evicts [3] * 8, for which [2] * 8 has to go
    assert model.pool.task_free("held") is None
    push_out(model)
    assert [model.pool.prefix_len([i] * 9) for i in (1, 2, 3)] == [8, 0, 8]


def test_a_task_without_room_reads_and_changes_nothing(make_tiered, host):
    spy = Spy(host)
    model = make_tiered(spy, max_batch_size=2)
    run(model, "a", PROMPT)
    push_out(model)
    order = list(host._lru._sizes)
    assert model.pool.task_alloc("x", [7] * 16)
    spy.calls.clear()
    assert not model.pool.task_alloc("b", PROMPT)  # three pages, and two are left
    assert model.pool.task_alloc("y", [])
    assert not model.pool.task_alloc("b", PROMPT[:5])  # no row
    assert spy.calls == []
    assert list(host._lru._sizes) == order
    assert model.pool.prefix_len(PROMPT) == 8
    check_invariants(model.pool)


def test_what_is_wanted_is_read_before_its_own_room_pushes_it_out(make_tiered):
    host = HostTier(2 * PAGE_BYTES)
    model = make_tiered(host)
    run(model, "a", PROMPT)
    push_out(model)
    other = [6] * 8
    assert model.run("b", other) == 0
    model.pool.task_extend("b", 15)
    model.pool.task_free("b")
    assert model.pool.task_alloc("x", [], num_tokens=12)
    assert model.pool.num_cached_pages == 2
    assert model.pool.prefix_len(PROMPT) == 8
    assert model.run("c", PROMPT) == 8
    assert model.pool.prefix_len([*other, 0]) == 8


def test_a_shared_page_that_came_back_is_not_written(make_tiered, host):
    model = make_tiered(host)
    run(model, "a", PROMPT)
    push_out(model)
    model.run("b", PROMPT)
    model.run("c", PROMPT)
    first, second = (model.pool._tasks.by_id[name] for name in "bc")
    assert first.pages[:2] == second.pages[:2]
    assert first.num_shared == second.num_shared == 2


def test_what_comes_back_is_told(make_tiered, host):
    events = []
    model = make_tiered(host, on_event=events.append)
    run(model, "a", PROMPT)
    push_out(model)
    assert [type(event) for event in events] == [PageStored] * 2 + [PageEvicted] * 2
    events.clear()
    model.pool.task_alloc("b", PROMPT)
    assert [(type(event), event.token_ids) for event in events] == [
        (PageStored, (1, 2, 3, 4)),
        (PageStored, (1, 2, 3, 4)),
    ]
    assert events[1].parent == events[0].page


def test_new_weights_empty_the_tiers(make_tiered, host, tmp_path):
    model = make_tiered(host, DiskTier(tmp_path, 100_000))
    run(model, "a", PROMPT)
    push_out(model)
    model.run("b", PROMPT)
    model.pool.reset_prefix_cache()
    assert (len(host), list(tmp_path.iterdir())) == (0, [])
    model.pool.task_free("b")
    check_invariants(model.pool)
    model.pool.save_prefix_cache()
    assert len(host) == 0
    assert model.pool.prefix_len(PROMPT) == 0


def test_a_page_of_another_form_is_never_served(make_tiered, host, caplog):
    model = make_tiered(host)
    run(model, "a", PROMPT)
    push_out(model)
    for prefix, page in list(host._pages.items()):
        host._pages[prefix] = PageKV(page.keys[:, :2], page.values)
    assert run(model, "b", PROMPT) == 0
    assert "A stored page is ignored: its form is (2, 2, 1, 1) torch.float64" in caplog.text


def test_tiers_need_to_know_the_model(make_pool, host):
    with pytest.raises(InvalidArgumentError, match="Tiers need a fingerprint"):
        make_pool(tiers=[host])


@pytest.mark.parametrize("changes", [{"n_tokens": None}, {"prefix_cache": False}])
def test_without_a_prefix_cache_tiers_stay_empty(make_tiered, host, changes):
    model = make_tiered(host, **changes)
    assert run(model, "a", PROMPT) == 0
    assert run(model, "b", PROMPT) == 0
    model.pool.save_prefix_cache()
    model.pool.reset_prefix_cache()
    assert len(host) == 0


def test_without_tiers_saving_does_nothing(make_pool, make_model):
    model = make_model(make_pool())
    model.run("a", PROMPT)
    model.pool.save_prefix_cache()
    check_invariants(model.pool)
