"""Any sequence of operations, against an oracle of plain dicts and lists.

The oracle knows, for each task, its tokens and what a reader must see at each position; for each
findable page, the whole prefix it stands for; the order in which unused pages must be evicted; and
what a tier must have kept of them.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from astrai_kvcache import HostTier, PagePool, PageStored, SharedPageError
from astrai_kvcache.testing import check_invariants

MAX_SEQ_LEN = 19
MAX_BATCH_SIZE = 4

tokens = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=14)
long_prompts = st.integers(0, 8).map(lambda i: [*f"{i:b}1".encode()] * 4)
salts = st.sampled_from([None, None, None, "", "red"])
choice = st.integers(0, 11)


@dataclass
class Sequence:
    """What the oracle knows of one task."""

    tokens: list[int]
    salt: str | None
    computed: int
    num_pages: int
    num_shared: int
    is_stale: bool = False


class PoolMachine(RuleBasedStateMachine):
    def __init__(self, model_type):
        super().__init__()
        self.model_type = model_type

    @initialize(
        page_size=st.sampled_from([1, 3, 4]),
        num_pages=st.integers(3, 14),
        num_kept=st.sampled_from([0, 1, 3, 9]),
        far_table=st.booleans(),
    )
    def build(self, page_size, num_pages, num_kept, far_table):
        self.size = page_size
        self.num_kept = num_kept
        page_bytes = 2 * 2 * page_size * 8 + page_size * 8  # K/V of two layers; tokens
        tiers = [HostTier(num_kept * page_bytes + 1)] if num_kept else []
        self.pool = PagePool(
            2, 1, 1, MAX_BATCH_SIZE, MAX_SEQ_LEN, "cpu", torch.float64, page_size,
            num_pages * page_size, on_event=self.follow, tiers=tiers, fingerprint="model",
        )  # fmt: skip
        if far_table:  # as on a device, whose table the host cannot write to
            self.pool._table._host = None
            self.pool._binder._host = None
        self.model = self.model_type(self.pool)
        self.longest = min(MAX_SEQ_LEN, num_pages * page_size)
        self.sequences: dict[str, Sequence] = {}
        self.pins: dict[str, list[int]] = {}
        self.stored: dict[tuple[str | None, tuple[int, ...]], int] = {}
        self.unused: list[int] = []  # findable pages without users, next to be evicted first
        self.kept: list[tuple[str | None, tuple[int, ...]]] = []  # in the tier, first out first
        self.resetting = False
        self.num_named = 0

    # The oracle

    def follow(self, event):
        prefixes = {page: key for key, page in self.stored.items()}
        if isinstance(event, PageStored):
            above = prefixes[event.parent][1] if event.parent >= 0 else ()
            key = (event.salt or None, above + event.token_ids)
            assert event.page not in prefixes
            assert key not in self.stored
            self.stored[key] = event.page
        else:
            assert prefixes[event.page][1][-self.size :] == event.token_ids
            del self.stored[prefixes[event.page]]
            if not self.resetting:
                assert self.unused.pop(0) == event.page
                self.keep(prefixes[event.page])

    def keep(self, key):
        """Note that a page was put into the tier."""
        self.kept = [*(other for other in self.kept if other != key), key]
        self.kept = self.kept[max(len(self.kept) - self.num_kept, 0) :]

    def kept_behind(self, prefix, salt, num_hits):
        """Content in the tier that continues the first pages of ``prefix``."""
        keys = []
        for end in range((num_hits + 1) * self.size, len(prefix) + 1, self.size):
            key = (salt or None, tuple(prefix[:end]))
            if key not in self.kept:
                break
            keys.append(key)
        return keys

    def path(self, prefix, salt):
        """Findable pages that hold the start of ``prefix``."""
        pages = []
        for end in range(self.size, len(prefix) + 1, self.size):
            page = self.stored.get((salt or None, tuple(prefix[:end])))
            if page is None:
                break
            pages.append(page)
        return pages

    def pages_of(self, task_id):
        task = self.pool._tasks.by_id[task_id]  # check_invariants compares it with the table
        assert len(task.pages) == self.sequences[task_id].num_pages
        return task.pages

    def in_use(self):
        users = [self.pages_of(task_id) for task_id in self.sequences]
        return {page for pages in [*users, *self.pins.values()] for page in pages}

    def num_pages(self, length):
        return -(-length // self.size)

    def fits(self, num_new, shared=()):
        return num_new <= self.pool.num_pages - len(self.in_use() | set(shared))

    def use(self, pages):
        self.unused = [page for page in self.unused if page not in pages]

    def released(self, pages):
        """Note that one user of ``pages`` has gone, after the call that did it."""
        in_use, findable = self.in_use(), set(self.stored.values())
        self.unused += [p for p in reversed(pages) if p in findable and p not in in_use]

    def pick(self, which):
        return sorted(self.sequences)[which % len(self.sequences)]

    def new_name(self):
        self.num_named += 1
        return f"{self.num_named:04}"

    has_task = precondition(lambda self: self.sequences)

    # The operations

    @rule(prompt=tokens, num_tokens=st.none() | st.integers(0, 16), salt=salts)
    def alloc(self, prompt, num_tokens, salt):
        self.admit(prompt, num_tokens, salt)

    @rule(prompts=st.lists(long_prompts, min_size=1, max_size=6), salt=salts, stays=st.booleans())
    def serve(self, prompts, salt, stays):
        """The whole life of some requests, the last of which may stay."""
        for prompt in prompts:
            name = self.admit(prompt, None, salt)
            if name is not None:
                self.step([name], packed=True)
                self.record_computed(name)
                if not stays or prompt is not prompts[-1]:
                    self.remove(name)

    def admit(self, prompt, num_tokens, salt):
        prompt = prompt[: self.longest]
        length = len(prompt) if num_tokens is None else min(num_tokens, self.longest)
        known = prompt[: max(min(length, len(prompt)) - 1, 0)]
        hits = self.path(known, salt)
        back = self.kept_behind(known, salt, len(hits))
        num_new = self.num_pages(length) - len(hits)
        expected = len(self.sequences) < MAX_BATCH_SIZE and self.fits(num_new, hits)
        if expected:
            self.use(hits)
        name = self.new_name()
        assert self.pool.task_alloc(name, prompt, num_tokens=length, salt=salt) == expected
        if expected:
            for key in reversed(back):
                if key in self.kept:  # the task's own room may have pushed it out
                    self.keep(key)
            num_cached = len(hits) + len(back)
            self.sequences[name] = Sequence(
                (prompt + [1] * length)[:length],
                salt,
                num_cached * self.size,
                self.num_pages(length),
                num_cached,
            )
            assert self.pool.task_cached(name) == num_cached * self.size
        hits = self.path(prompt[:-1], salt)
        num_known = len(hits) + len(self.kept_behind(prompt[:-1], salt, len(hits)))
        assert self.pool.prefix_len(prompt, salt=salt) == num_known * self.size
        return name if expected else None

    @has_task
    @rule(which=choice, new=st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=6))
    def extend(self, which, new):
        name = self.pick(which)
        sequence = self.sequences[name]
        length = len(sequence.tokens) + len(new)
        num_new = max(self.num_pages(length) - sequence.num_pages, 0)
        expected = length <= MAX_SEQ_LEN and self.fits(num_new)
        assert self.pool.task_extend(name, length - 1) == expected
        if expected:
            sequence.tokens += new
            sequence.num_pages += num_new

    @has_task
    @rule(which=choice, count=st.integers(1, 6))
    def take_back(self, which, count):
        name = self.pick(which)
        sequence = self.sequences[name]
        length = len(sequence.tokens) - count
        if length <= 0:
            return
        assert self.pool.task_extend(name, length - 1)
        if length <= sequence.num_shared * self.size:
            with pytest.raises(SharedPageError):
                self.pool.bind_tasks([name], self.model.workspace)
            assert self.pool.task_extend(name, len(sequence.tokens) - 1)
            return
        sequence.tokens = sequence.tokens[:length]
        sequence.computed = min(sequence.computed, length)

    @has_task
    @rule(which=st.integers(1, 2**MAX_BATCH_SIZE - 1), most=st.integers(1, 19))
    def compute(self, which, most):
        """One ragged step over some of the tasks; the last chunk of each that has any left."""
        chosen = [n for i, n in enumerate(sorted(self.sequences)) if which >> i & 1]
        chosen = [n for n in chosen if len(self.sequences[n].tokens) - self.sequences[n].computed]
        for name in chosen:  # cut to a chunk, as chunked prefill does
            sequence = self.sequences[name]
            end = min(len(sequence.tokens), sequence.computed + most)
            sequence.tokens = sequence.tokens[:end]
            assert self.pool.task_extend(name, end - 1)
        self.step(chosen, packed=True)

    @has_task
    @rule(steps=st.integers(2, 6), packed=st.booleans())
    def decode(self, steps, packed):
        """Steady decode of all tasks that can."""
        chosen = [
            name
            for name in sorted(self.sequences)
            if 0 < self.sequences[name].computed == len(self.sequences[name].tokens)
        ]
        for step in range(steps):
            for name in chosen:
                sequence = self.sequences[name]
                length = len(sequence.tokens)
                num_new = max(self.num_pages(length + 1) - sequence.num_pages, 0)
                if length == MAX_SEQ_LEN or not self.fits(num_new):
                    return
                assert self.pool.task_extend(name, length)
                sequence.num_pages += num_new
                sequence.tokens.append(step % 2)
            self.step(chosen, packed=packed)

    def step(self, names, *, packed):
        batch = {name: self.sequences[name].tokens for name in names}
        q_lens = [len(batch[name]) - self.sequences[name].computed for name in names]
        salts = {name: self.sequences[name].salt or None for name in names}
        self.model.compute(batch, q_lens if packed else None, salts)
        for name in names:
            self.sequences[name].computed = len(batch[name])

    @has_task
    @rule(which=choice)
    def record(self, which):
        self.record_computed(self.pick(which))

    def record_computed(self, name):
        sequence = self.sequences[name]
        known = sequence.tokens[: sequence.computed]
        if not sequence.is_stale:
            self.use(self.path(known, sequence.salt))
        self.pool.task_record_hashes(name, known)
        if not sequence.is_stale:
            path = self.path(known, sequence.salt)
            assert len(path) == len(known) // self.size
            assert self.pages_of(name)[: len(path)] == path
            sequence.num_shared = max(sequence.num_shared, len(path))

    @has_task
    @rule(which=choice)
    def fork(self, which):
        name, child = self.pick(which), self.new_name()
        sequence = self.sequences[name]
        if sequence.computed < len(sequence.tokens):
            return
        length = len(sequence.tokens)
        expected = len(self.sequences) < MAX_BATCH_SIZE and self.fits(length % self.size > 0)
        assert self.pool.task_fork(name, child) == expected
        if expected:
            full = length // self.size
            sequence.num_shared = max(sequence.num_shared, full)
            self.sequences[child] = Sequence(
                list(sequence.tokens), sequence.salt, length, self.num_pages(length), full,
                sequence.is_stale,
            )  # fmt: skip

    @has_task
    @rule(which=choice)
    def free(self, which):
        self.remove(self.pick(which))

    def remove(self, name):
        pages = self.pages_of(name)
        del self.sequences[name]
        self.pool.task_free(name)
        self.released(pages)

    @rule()
    def save(self):
        self.pool.save_prefix_cache()
        for page in reversed(self.pool._pages.prefix.pages()):
            (key,) = (key for key, stored in self.stored.items() if stored == page)
            self.keep(key)

    @rule(pin=st.sampled_from(["p", "q"]), prefix=tokens, salt=salts)
    def pin(self, pin, prefix, salt):
        pages = self.path(prefix, salt)
        self.use(pages)
        assert self.pool.pin_prefix(pin, prefix, salt=salt) == len(pages) * self.size
        old = self.pins.pop(pin, [])
        self.pins[pin] = pages
        self.released(old)

    @rule(pin=st.sampled_from(["p", "q"]))
    def unpin(self, pin):
        self.pool.unpin_prefix(pin)
        self.released(self.pins.pop(pin, []))

    @rule(really=st.integers(0, 5))
    def reset(self, really):
        if really:
            return
        self.resetting = True
        self.pool.reset_prefix_cache()
        self.resetting = False
        assert not self.stored
        self.pins.clear()
        self.kept.clear()
        self.unused.clear()
        for sequence in self.sequences.values():
            sequence.is_stale = True

    # What holds at every moment

    @invariant()
    def the_pool_keeps_its_promises(self):
        if not hasattr(self, "pool"):
            return
        check_invariants(self.pool)
        assert self.pool.num_cached_pages == len(self.unused)
        assert self.pool.num_in_use_pages == len(self.in_use())
        states = self.pool.page_states()
        assert {page for page, state in enumerate(states) if state == 1} == set(self.unused)
        assert {page for page, state in enumerate(states) if state > 1} == set(self.in_use())

    @invariant()
    def a_task_reads_what_it_would_have_computed_alone(self):
        for name, sequence in getattr(self, "sequences", {}).items():
            expected = self.model.expected(sequence.tokens, sequence.salt or None)
            assert self.model.read(name, sequence.computed) == expected[: sequence.computed]

    @invariant()
    def a_findable_page_holds_what_it_is_found_by(self):
        for (salt, prefix), page in getattr(self, "stored", {}).items():
            slots = slice(page * self.size, (page + 1) * self.size)
            held = self.pool.storage.k_buffer[0, slots].flatten().tolist()
            assert held == self.model.expected(prefix, salt)[-self.size :]


def test_any_sequence_of_operations(make_model):
    """B007, B013, B025, B027: every promise holds after each of thousands of random steps."""
    run_state_machine_as_test(
        lambda: PoolMachine(make_model),
        settings=settings(
            max_examples=120,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
