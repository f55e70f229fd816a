"""The cache as a scheduler sees it."""

from collections.abc import Callable, Hashable, Sequence

import torch

from astrai_kvcache.binding import StepBinder
from astrai_kvcache.errors import BindError
from astrai_kvcache.events import CacheCounters, Capacity, PageEvent
from astrai_kvcache.kv_cache import KVCache
from astrai_kvcache.layout import Layout
from astrai_kvcache.offload import Offload
from astrai_kvcache.req_to_token import ReqToTokenPool
from astrai_kvcache.shared_pages import SharedPages
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.task_pages import TaskPages
from astrai_kvcache.tiers import PageTier
from astrai_kvcache.workspace import BindBuffers


class PagePool:
    """K/V storage for many tasks, which share the pages of equal prefixes.

    *Paged* (``n_tokens`` given): pages are taken as tasks grow and found again by their content.
    *Contiguous* (the default): each task owns ``max_seq_len`` slots, and nothing is shared.

    One thread owns a pool. A call that fails, by its return value or by an error, changes nothing.

    Args:
        n_layers: layers of the model.
        n_kv_heads: K/V heads per layer.
        head_dim: dimension of a head.
        max_batch_size: tasks at once.
        max_seq_len: tokens per task.
        device: where K/V and table live.
        dtype: of the stored K/V.
        page_size: token slots in a page; 1 shares single tokens.
        n_tokens: token slots in the pool, rounded down to whole pages; None is contiguous mode.
        prefix_cache: whether to find and share pages of equal prefixes.
        on_event: called with each page stored or evicted, after the pool has changed.
        tiers: where evicted pages are kept until they are wanted again, fastest first.
        fingerprint: names the model exactly (a hash of its weights); needed with tiers.

    Attributes:
        contiguous: whether the pool is in contiguous mode.
        n_tokens: token slots in the pool.
        storage: the K/V of all slots.

    Raises:
        InvalidArgumentError: a size is out of range, or tiers have no fingerprint.
    """

    def __init__(  # noqa: PLR0913 - the seed's signature
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        max_batch_size: int,
        max_seq_len: int,
        device: torch.device | str,
        dtype: torch.dtype,
        page_size: int = 1,
        n_tokens: int | None = None,
        *,
        prefix_cache: bool = True,
        on_event: Callable[[PageEvent], None] | None = None,
        tiers: Sequence[PageTier] = (),
        fingerprint: str = "",
    ) -> None:
        layout = Layout(max_batch_size, max_seq_len, page_size, n_tokens)
        self.n_layers = n_layers
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.max_batch_size = max_batch_size
        self.max_seq_len = max_seq_len
        self.device = torch.device(device)
        self.dtype = dtype
        self.page_size = page_size
        self.contiguous = layout.contiguous
        self.n_tokens = layout.num_slots
        self.storage = KVStorage(self.n_tokens, n_layers, n_kv_heads, head_dim, self.device, dtype)
        self._layout = layout
        self._table = ReqToTokenPool(
            max_batch_size, max_seq_len, self.device, 1 if self.contiguous else page_size
        )
        if self.contiguous:
            self._table.own_slots()
        self._pages = SharedPages(
            layout.num_pages, page_size, on_event, prefix_cache=prefix_cache and not self.contiguous
        )
        self._tasks = TaskPages(self._pages, self._table, layout)
        self._binder = StepBinder(self.storage, self._table, layout)
        if tiers and self._pages.prefix is not None:
            self._pages.offload = Offload(self.storage, page_size, tiers, fingerprint)

    def task_alloc(
        self,
        task_id: str,
        prompt_ids: Sequence[int],
        *,
        num_tokens: int | None = None,
        salt: Hashable = None,
    ) -> bool:
        """Add a task, with slots for the first tokens of its prompt.

        Args:
            task_id: a name that is not in use.
            prompt_ids: the whole prompt.
            num_tokens: slots to reserve, which becomes the task's length; all of it by default.
            salt: only tasks with equal salts share pages (a tenant, an adapter, a tuple of both).

        Returns:
            False when no row is free or too few pages are.

        Raises:
            DuplicateTaskError: the id is in use.
            PromptTooLongError: it could not fit even if nothing else were in the pool.
            InvalidArgumentError: ``num_tokens`` is negative.
        """
        self._tasks.check_is_new(task_id)
        length = len(prompt_ids) if num_tokens is None else num_tokens
        for num_wanted in (length, len(prompt_ids)):
            self._layout.check_length(num_wanted)
        done = self._tasks.add(task_id, length, prompt_ids, salt)
        self._pages.deliver_events()
        return done

    def task_fork(self, task_id: str, child_id: str) -> bool:
        """Add a task that continues from where another one is, for parallel samples.

        Full pages are shared; the K/V of a partial last page are copied.

        Args:
            task_id: the task to continue from, whose K/V are all computed.
            child_id: a name that is not in use.

        Returns:
            False when no row or no page is free.

        Raises:
            UnknownTaskError: no task has the first id.
            DuplicateTaskError: the second id is in use.
        """
        (parent,) = self._tasks.get([task_id])
        done = self._tasks.fork(parent, child_id, self.storage)
        self._pages.deliver_events()
        return done

    def task_extend(self, task_id: str, pos: int) -> bool:
        """Reserve slots up to and including position ``pos``; the length becomes ``pos + 1``.

        A smaller ``pos`` takes back the last tokens; their slots stay reserved.

        Returns:
            False for an unknown task, a position outside the context, or too few free pages.
        """
        task = self._tasks.by_id.get(task_id)
        if task is None or not 0 <= pos < self.max_seq_len:
            return False
        done = self._tasks.resize(task, pos + 1)
        self._pages.deliver_events()
        return done

    def task_free(self, task_id: str) -> None:
        """Remove a task; its recorded pages stay cached. Does nothing for an unknown one."""
        self._tasks.remove(task_id)

    def task_cached(self, task_id: str) -> int:
        """Tokens of a task that were found in the prefix cache; 0 for an unknown one."""
        task = self._tasks.by_id.get(task_id)
        return 0 if task is None else task.num_cached * self.page_size

    def task_record_hashes(
        self, task_id: str, prompt_ids: Sequence[int], start_logical_page: int = 0
    ) -> None:
        """Let later tasks find the full pages of a task whose K/V are computed.

        Where another page holds the same content already, the task goes on with that page and
        gives its own back. Does nothing for an unknown task or without prefix cache.

        Args:
            task_id: the task.
            prompt_ids: its tokens from the first on, generated ones too, whose K/V are computed.
            start_logical_page: the first page not recorded so far. Recorded ones are skipped
                anyway; pages behind a gap are not recorded, as nothing could find them.

        Raises:
            PageStateError: a page was recorded with other tokens before, by a forked task.
        """
        task = self._tasks.by_id.get(task_id)
        if task is None or self._pages.prefix is None or start_logical_page > task.num_recorded:
            return
        self._tasks.record(task, prompt_ids)
        self._pages.deliver_events()

    def prefix_len(self, prompt_ids: Sequence[int], *, salt: Hashable = None) -> int:
        """Tokens that ``task_alloc`` would report as cached now; a query changes nothing."""
        return self._tasks.num_known(prompt_ids, salt) * self.page_size

    def pin_prefix(self, pin_id: str, token_ids: Sequence[int], *, salt: Hashable = None) -> int:
        """Keep the recorded pages of a prefix until it is unpinned; they count as in use.

        Args:
            pin_id: a name; pinning again under the same name moves the pin.
            token_ids: the prefix; only full pages that are recorded now are pinned.
            salt: as for ``task_alloc``.

        Returns:
            The number of tokens pinned.
        """
        pages = self._pages.find(token_ids, salt)
        self._pages.pin(pin_id, pages)
        return len(pages) * self.page_size

    def unpin_prefix(self, pin_id: str) -> None:
        """Let a pinned prefix be evicted again; does nothing for an unknown pin."""
        self._pages.pin(pin_id, ())

    def reset_prefix_cache(self) -> None:
        """Forget all content, in tiers too, and all pins (new weights); tasks' K/V stay out."""
        self._pages.forget_all()
        self._tasks.make_stale()
        self._pages.deliver_events()

    def save_prefix_cache(self) -> None:
        """Copy all recorded pages to the tiers, before a shutdown; evicted ones are there."""
        self._pages.store_all()

    def bind_tasks(
        self,
        task_ids: Sequence[str],
        workspace: BindBuffers,
        device: torch.device | None = None,
        start_pos: int | None = None,
        *,
        q_lens: Sequence[int] | None = None,
    ) -> KVCache:
        """Describe one step to the model, before its forward pass.

        With ``q_lens``, each task computes its last ``q_len`` tokens, packed; with ``start_pos``,
        tasks of equal length compute the tokens from there on; with neither, their last token.

        Args:
            task_ids: in batch order.
            workspace: the buffers that the result points into, on the pool's device.
            device: where metadata is sent first; the workspace's by default.
            start_pos: first position to compute.
            q_lens: tokens to compute, one count per task; 0 only reads.

        Returns:
            The step's :class:`KVCache`, valid until the workspace is bound again.

        Raises:
            UnknownTaskError: no task has one of the ids.
            BindError: the step does not fit the tasks or the workspace.
            SharedPageError: the step would write a page that others may read.
        """
        tasks = self._tasks.get(task_ids)
        target = torch.device(workspace.device if device is None else device)
        if start_pos is None:
            return self._binder.bind(tasks, workspace, target, q_lens)
        if q_lens is not None:
            raise BindError("Pass start_pos or q_lens, not both.")
        return self._binder.bind_equal(tasks, workspace, target, start_pos)

    @property
    def num_pages(self) -> int:
        """Pages in all; in contiguous mode a page is one task's whole region."""
        return self.max_batch_size if self.contiguous else self._pages.allocator.num_pages

    @property
    def num_free_pages(self) -> int:
        """Pages that hold nothing worth keeping."""
        if self.contiguous:
            return len(self._table.free_slots)
        return self._pages.allocator.num_free

    @property
    def num_cached_pages(self) -> int:
        """Pages kept for later hits, given up when room is needed."""
        return self._pages.allocator.num_cached

    @property
    def num_in_use_pages(self) -> int:
        """Pages of running tasks and pins."""
        return self.num_pages - self.num_free_pages - self.num_cached_pages

    def page_states(self) -> bytes:
        """What each page is now, one byte a page, for maps of the pool.

        0 is free, 1 cached, and ``1 + users`` in use: 2 by one task or pin, 3 and more shared;
        255 is 254 users or more. Takes time in proportion to the pool, microseconds a thousand
        pages.
        """
        states = bytearray(self.num_pages)
        if self.contiguous:
            for task in self._tasks.by_id.values():
                states[task.row] = 2
        else:
            self._pages.allocator.write_states(states)
        return bytes(states)

    def task_pages(self, task_id: str) -> list[int]:
        """The pages of a task in order, its row in contiguous mode; none for an unknown one."""
        task = self._tasks.by_id.get(task_id)
        if task is None:
            return []
        return [task.row] if self.contiguous else list(task.pages)

    @property
    def counters(self) -> CacheCounters:
        """What the prefix cache has done so far."""
        return self._pages.counters

    def capacity(self) -> Capacity:
        """How full the pool is now; ``task_alloc`` succeeds within it."""
        num_rows = len(self._table.free_slots)
        unused = self.num_free_pages, self.num_cached_pages
        room = self.n_tokens if self.contiguous else sum(unused) * self.page_size
        longest = min(self.max_seq_len, room)
        return Capacity(*unused, self.num_in_use_pages, num_rows, longest if num_rows else 0)
