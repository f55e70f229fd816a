"""Which replica a prompt is sent to, with a random load held against a plain model of it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astrai_api.replicas.prefix_router import PrefixRouter


def prompt(*words):
    """Digests as prompt_blocks gives them: each covers all before it."""
    return tuple("/".join(words[: i + 1]).encode() for i in range(len(words)))


IDLE = {"a": 0, "b": 0, "c": 0}


def test_a_prompt_goes_where_its_beginning_went():
    router = PrefixRouter()
    for name in IDLE:
        router.record(prompt("system", name), name)
    for name in IDLE:
        assert router.rank(prompt("system", name, "more"), IDLE)[0] == name


def test_the_longest_part_held_decides():
    router = PrefixRouter()
    router.record(prompt("s", "x"), "a")
    router.record(prompt("s", "x", "y"), "b")
    assert router.rank(prompt("s", "x", "y", "z"), {**IDLE, "b": 1})[:2] == ["b", "a"]


def test_equal_holders_are_told_apart_by_load():
    router = PrefixRouter()
    router.record(prompt("s"), "a")
    router.record(prompt("s"), "b")
    assert router.rank(prompt("s", "x"), {**IDLE, "a": 1})[0] == "b"
    assert router.rank(prompt("s", "x"), {**IDLE, "b": 1})[0] == "a"


def test_one_that_is_too_busy_is_passed_over():
    router = PrefixRouter(load_factor=1.5, spare_load=2)
    router.record(prompt("s"), "a")
    assert router.bound({"a": 1, "b": 0}) == 2
    assert router.rank(prompt("s"), {"a": 1, "b": 0}) == ["a", "b"]
    assert router.bound({"a": 3, "b": 0}) == 3
    assert router.rank(prompt("s"), {"a": 3, "b": 0}) == ["b", "a"]
    assert router.bound({"a": 20, "b": 19}) == 30
    assert router.rank(prompt("s"), {"a": 29, "b": 10}) == ["a", "b"]
    assert router.rank(prompt("s"), {"a": 30, "b": 9}) == ["b", "a"]


def test_first_words_alone_make_no_relatives():
    router = PrefixRouter(least_match=0.1)
    router.record(prompt("hello"), "a")
    loads = {"a": 1, "b": 0}
    assert router.rank(prompt("hello", *"123456789"), loads)[0] == "a"
    assert router.rank(prompt("hello", *"1234567890"), loads)[0] == "b"


def test_new_prompts_spread_over_idle_replicas():
    router = PrefixRouter()
    found = Counter(router.rank(prompt(f"p{i}"), IDLE)[0] for i in range(300))
    assert min(found.values()) > 60


def test_requests_without_a_prompt_go_to_the_least_loaded():
    assert PrefixRouter().rank((), {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]


def test_without_replicas_there_is_nobody_to_rank():
    assert PrefixRouter().rank(prompt("x"), {}) == []


def test_the_ends_of_old_prompts_are_forgotten_first():
    router = PrefixRouter(capacity=3)
    router.record(prompt("old", "x"), "a")
    router.record(prompt("new", "y"), "b")
    loads = {"a": 0, "b": 1}
    assert len(router) == 3
    assert router.rank(prompt("old", "x"), loads)[0] == "a"
    router.record(prompt("newest"), "b")
    router.record(prompt("new", "y"), "b")
    assert router.rank(prompt("old", "x"), {"a": 1, "b": 0})[0] == "b"


def test_what_replicas_held_that_are_gone_is_forgotten():
    router = PrefixRouter()
    router.record(prompt("s", "x"), "a")
    router.record(prompt("s"), "b")
    router.keep_only({"b", "c"})
    assert len(router) == 1
    assert router.rank(prompt("s", "x"), {"b": 0, "c": 0})[0] == "b"


class Routing(RuleBasedStateMachine):
    """Requests come and go, replicas too; what is remembered stays what was recorded."""

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity):
        self.router = PrefixRouter(capacity=capacity, spare_load=2)
        self.capacity = capacity
        self.loads = {"r0": 0}
        self.running = []
        self.sent = {}

    @rule(words=st.lists(st.sampled_from("xyz"), max_size=5))
    def request(self, words):
        blocks = prompt(*words)
        ranked = self.router.rank(blocks, self.loads)
        assert sorted(ranked) == sorted(self.loads)
        best = ranked[0]
        assert self.loads[best] < self.router.bound(self.loads)
        if not any(self.sent.get(block, set()) & self.loads.keys() for block in blocks):
            assert self.loads[best] == min(self.loads.values())
        self.router.record(blocks, best)
        for block in blocks:
            self.sent.setdefault(block, set()).add(best)
        self.loads[best] += 1
        self.running.append(best)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data):
        name = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if name in self.loads:
            self.loads[name] -= 1

    @rule(number=st.integers(0, 4))
    def add_replica(self, number):
        self.loads.setdefault(f"r{number}", 0)

    @precondition(lambda self: len(self.loads) > 1)
    @rule(data=st.data())
    def lose_replica(self, data):
        name = data.draw(st.sampled_from(sorted(self.loads)))
        del self.loads[name]
        self.running = [each for each in self.running if each != name]
        self.router.keep_only(self.loads)
        for holders in self.sent.values():
            holders.discard(name)

    @invariant()
    def memory_is_bounded(self):
        assert len(self.router) <= self.capacity


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=15, stateful_step_count=30)


@settings(max_examples=25)
@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 50), min_size=1))
def test_somebody_is_always_within_the_bound(loads):
    assert min(loads.values()) < PrefixRouter(spare_load=1, load_factor=1.0).bound(loads)


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
def test_a_single_prefix_for_everybody_is_shared_out(factor):
    router = PrefixRouter(load_factor=factor, spare_load=1)
    loads = {"a": 0, "b": 0, "c": 0, "d": 0}
    for _ in range(400):
        name = router.rank(prompt("the", "same"), loads)[0]
        router.record(prompt("the", "same"), name)
        loads[name] += 1
    assert max(loads.values()) <= factor * 100 + 1
