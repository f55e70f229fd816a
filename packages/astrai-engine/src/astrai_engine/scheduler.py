"""Which tokens run in the next step. Pure policy on integers: no torch, no threads, no text.

A step computes at most ``max_step_tokens`` tokens. Running sequences come first (a decoding one
needs a single token), then the prompts of waiting ones in chunks, so a long prompt never stalls
the streams. There is no separate prefill and decode: a sequence simply has uncomputed tokens.
What is left of the step may go to guesses of what follows a decoding one.

When pages run out the sequence that is last in order (the newest, where each step of ``priority``
counts as some seconds) gives its pages back and waits again, ahead of newer ones. The first in
order is never the victim while another runs, so it always advances, and with it every request.
"""

from bisect import insort
from collections.abc import Hashable
from operator import attrgetter
from time import monotonic
from typing import NamedTuple, Protocol

from astrai_engine.chunk_budget import ChunkBudget
from astrai_engine.sequence import Sequence
from astrai_engine.speculation import Speculation

_BY_ORDER = attrgetter("order")


class PageCache(Protocol):
    """What scheduling, and a view of it, need of the K/V cache; ``PagePool`` provides it."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing."""
        ...

    @property
    def num_cached_pages(self) -> int:
        """Pages that hold a reusable prefix and can be evicted."""
        ...

    def prefix_len(self, prompt_ids: list[int], *, salt: Hashable = None) -> int:
        """Tokens of the prompt whose K/V are cached now."""
        ...

    def task_alloc(
        self,
        task_id: str,
        prompt_ids: list[int],
        *,
        num_tokens: int | None = None,
        salt: Hashable = None,
    ) -> bool:
        """Reserve slots for the first ``num_tokens``; False changes nothing."""
        ...

    def task_extend(self, task_id: str, pos: int) -> bool:
        """Reserve slots up to and including ``pos``; False changes nothing."""
        ...

    def task_cached(self, task_id: str) -> int:
        """Tokens reused when the task was allocated."""
        ...

    def task_record_hashes(
        self, task_id: str, prompt_ids: list[int], start_logical_page: int = 0
    ) -> None:
        """Offer the task's full pages from ``start_logical_page`` on to the prefix cache."""
        ...

    def task_free(self, task_id: str) -> None:
        """Release the task; its recorded pages stay cached."""
        ...

    def page_states(self) -> bytes:
        """One byte a page: 0 free, 1 cached, ``1 + users`` in use."""
        ...

    def task_pages(self, task_id: str) -> list[int]:
        """The pages of a task, in order."""
        ...


class ScheduledSequence(NamedTuple):
    """The part of one sequence that runs in a step.

    Attributes:
        sequence: whose tokens these are.
        num_tokens: how many of its uncomputed tokens run.
        samples: whether the step ends with a new token for it.
        draft: guesses of what follows them, which run behind them; the step ends with one more
            new token for each that is right.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Whether this is the one token that a sequence needs whose prompt is computed."""
        return self.samples and self.num_tokens == 1 and self.sequence.is_prompt_computed


def chunk_size(num_uncomputed: int, budget: int) -> int:
    """How many of a sequence's tokens run in a step that has room for ``budget``.

    A chunk leaves no single token behind: alone it would run as a decoding row, whose kernel
    rounds differently, and the text would depend on how busy the engine was.
    """
    if num_uncomputed == budget + 1 and budget > 2:
        return budget - 1
    return min(num_uncomputed, budget)


class Scheduler:
    """Admits, chunks and preempts sequences.

    Args:
        cache: where their K/V live.
        max_batch_size: sequences running at once.
        max_step_tokens: tokens computed in one step.
        chunk_budget: limits what joins a step in which sequences decode; None does not.
        speculation: guesses what follows decoding sequences; None does not.
    """

    def __init__(
        self,
        cache: PageCache,
        *,
        max_batch_size: int,
        max_step_tokens: int,
        chunk_budget: ChunkBudget | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.cache = cache
        self.max_batch_size = max_batch_size
        self.max_step_tokens = max(max_step_tokens, max_batch_size)
        self.chunk_budget = chunk_budget
        self.speculation = speculation
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, first come first served within its priority."""
        insort(self.waiting, sequence, key=_BY_ORDER)

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self.running or self.waiting)

    def schedule(self) -> list[ScheduledSequence]:
        """Choose the tokens of the next step and reserve their slots."""
        preemptions = self.num_preemptions
        budget = self._step_budget()
        batch = self._continue_running(budget)
        if self.num_preemptions == preemptions:
            self._admit_waiting(batch, budget - sum(item.num_tokens for item in batch))
        if self.speculation is None or not self.speculation.has_room(len(batch)):
            return batch
        if self.chunk_budget is not None and self._has_prompts(batch):
            return batch
        return self._add_drafts(batch, self.speculation)

    def commit(self, item: ScheduledSequence, num_right: int = 0) -> None:
        """Note that the K/V of ``item`` exist: full pages enter the prefix cache.

        Args:
            item: from :meth:`schedule`.
            num_right: the guesses that were right; the tokens are the sequence's own by now. What
                the others left behind is overwritten.
        """
        sequence = item.sequence
        sequence.num_computed += item.num_tokens + num_right
        full_pages = sequence.num_computed // self.cache.page_size
        if full_pages > sequence.num_recorded_pages and not sequence.scores_prompt:
            computed = sequence.token_ids[: sequence.num_computed]
            self.cache.task_record_hashes(sequence.task_id, computed, sequence.num_recorded_pages)
            sequence.num_recorded_pages = full_pages

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.cache.task_free(sequence.task_id)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _step_budget(self) -> int:
        num_decoding = sum(sequence.num_uncomputed == 1 for sequence in self.running)
        if self.chunk_budget is None or num_decoding == 0:
            return self.max_step_tokens
        return min(self.max_step_tokens, num_decoding + self.chunk_budget.tokens)

    def _continue_running(self, budget: int) -> list[ScheduledSequence]:
        """Decodes first, then prompts already begun; both oldest first."""
        batch: list[ScheduledSequence] = []
        for sequence in sorted(self.running, key=lambda s: (s.num_uncomputed > 1, s.order)):
            if sequence not in self.running:
                continue  # preempted by an earlier one in this very step
            num_tokens = chunk_size(sequence.num_uncomputed, budget)
            if num_tokens and self._extend(sequence, num_tokens, batch):
                batch.append(self._scheduled(sequence, num_tokens))
                budget -= num_tokens
        return batch

    def _extend(self, sequence: Sequence, num_tokens: int, batch: list[ScheduledSequence]) -> bool:
        """Reserve slots, preempting from the end of the order until they fit."""
        last_position = sequence.num_computed + num_tokens - 1
        while not self.cache.task_extend(sequence.task_id, last_position):
            victim = max(self.running, key=_BY_ORDER)
            self._preempt(victim)
            batch[:] = [item for item in batch if item.sequence is not victim]
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.task_free(sequence.task_id)
        sequence.num_computed = 0
        sequence.num_recorded_pages = 0
        self.num_preemptions += 1
        self.add(sequence)

    def _admit_waiting(self, batch: list[ScheduledSequence], budget: int) -> None:
        for sequence in list(self.waiting):
            if not budget or len(self.running) >= self.max_batch_size:
                return
            if self._waits_for_leader(sequence):
                continue
            num_tokens = self._admit(sequence, budget)
            if not num_tokens:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            batch.append(self._scheduled(sequence, num_tokens))
            budget -= num_tokens

    def _has_prompts(self, batch: list[ScheduledSequence]) -> bool:
        """Whether prompts run or wait: guesses would blur what the chunk budget learns."""
        return (
            bool(self.waiting)
            or len(batch) < len(self.running)
            or any(not (item.is_decode and item.samples) for item in batch)
        )

    def _add_drafts(
        self, batch: list[ScheduledSequence], speculation: Speculation
    ) -> list[ScheduledSequence]:
        """Fill the step with guesses, as far as they are worth it and take nothing from others."""
        decoding = [item.sequence for item in batch if item.is_decode]
        num_tokens = sum(item.num_tokens for item in batch)
        drafts = speculation.draft(
            decoding, num_tokens=num_tokens, budget=self.max_step_tokens - num_tokens
        )
        if not any(drafts):
            return batch
        rest = iter(drafts)
        return [self._with_draft(item, next(rest)) if item.is_decode else item for item in batch]

    def _with_draft(self, item: ScheduledSequence, draft: list[int]) -> ScheduledSequence:
        sequence = item.sequence
        last_position = sequence.num_computed + len(draft)
        if (
            not draft
            or not self._leaves_room(len(draft))
            or not self.cache.task_extend(sequence.task_id, last_position)
        ):
            return item
        return item._replace(draft=tuple(draft))

    def _waits_for_leader(self, sequence: Sequence) -> bool:
        """Whether the pages it would share are still being computed by another choice."""
        leader = sequence.leader
        if leader is None or leader.is_prompt_computed:
            return False
        return leader in self.running or leader in self.waiting

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Reserve the first chunk; gives its number of tokens, 0 if it has to wait."""
        salt = sequence.cache_salt
        known = _reusable(sequence)
        cached = self.cache.prefix_len(known, salt=salt)
        num_tokens = chunk_size(len(sequence.token_ids) - cached, budget)
        if not self._leaves_room(num_tokens):
            return 0
        if not self.cache.task_alloc(
            sequence.task_id, known, num_tokens=cached + num_tokens, salt=salt
        ):
            return 0
        sequence.num_computed = self.cache.task_cached(sequence.task_id)
        sequence.num_recorded_pages = sequence.num_computed // self.cache.page_size
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            sequence.started_at = monotonic()
        return num_tokens

    def _leaves_room(self, num_tokens: int) -> bool:
        """Whether every running sequence can still grow by a page after ``num_tokens`` more.

        Without this margin a preempted sequence would come back at once only to be preempted
        again. With nothing running there is nobody to leave room for.
        """
        if not self.running:
            return True
        needed = -(-num_tokens // self.cache.page_size) + len(self.running)
        return needed <= self.cache.num_free_pages + self.cache.num_cached_pages

    @staticmethod
    def _scheduled(sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        return ScheduledSequence(sequence, num_tokens, num_tokens == sequence.num_uncomputed)


def _reusable(sequence: Sequence) -> list[int]:
    """The tokens whose pages it may reuse, as the cache takes them: all but the last of these.

    Of a prompt two tokens are left to compute: a single one would run as a decoding row, whose
    kernel rounds differently, and the text would depend on what the cache holds. A preempted
    sequence goes on with its last token as it would have done.
    """
    return sequence.token_ids if sequence.num_generated else sequence.token_ids[:-1]
