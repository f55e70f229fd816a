"""Which pages and which row each task has."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from astrai_kvcache.errors import DuplicateTaskError, UnknownTaskError
from astrai_kvcache.layout import Layout
from astrai_kvcache.req_to_token import ReqToTokenPool
from astrai_kvcache.shared_pages import SharedPages
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.tiers import PageKV, Prefix


@dataclass(slots=True, eq=False)
class Task:
    """One request's place in the cache.

    Attributes:
        row: its row of the index table.
        length: its tokens, with the ones whose K/V the next step computes.
        pages: its pages in order; never fewer than ``length`` needs.
        salt: separates prefix sharing.
        num_prompt: tokens of its prompt that it was added with.
        num_cached: pages that were found, in the pool or a tier, when it was added.
        num_recorded: leading pages that are in the prefix cache.
        num_shared: leading pages that others may read, so that it must not write them.
        num_slots: token slots that it has; never fewer than ``length``.
        is_stale: it began before the prefix cache was reset, so its K/V stay out of it.
    """

    row: int
    length: int
    pages: list[int]
    salt: Hashable
    num_prompt: int
    num_cached: int
    num_recorded: int
    num_shared: int
    num_slots: int = 0
    is_stale: bool = False


class TaskPages:
    """The tasks of a pool, with the pages they use and the table rows that name them.

    Args:
        pages: the pages.
        table: the index table.
        layout: how many pages a length needs.

    Attributes:
        by_id: all tasks.
    """

    def __init__(self, pages: SharedPages, table: ReqToTokenPool, layout: Layout) -> None:
        self.by_id: dict[str, Task] = {}
        self._pages = pages
        self._table = table
        self._layout = layout

    def get(self, task_ids: Iterable[str]) -> list[Task]:
        """The tasks of those names, in order.

        Raises:
            UnknownTaskError: one of the names is not a task's.
        """
        try:
            return list(map(self.by_id.__getitem__, task_ids))
        except KeyError as error:
            raise UnknownTaskError(
                f"No task is named {error.args[0]!r}; add it with task_alloc first."
            ) from None

    def check_is_new(self, task_id: str) -> None:
        """Make sure that a name can be given to a task.

        Raises:
            DuplicateTaskError: it is in use.
        """
        if task_id in self.by_id:
            raise DuplicateTaskError(
                f"Task {task_id!r} exists already; free it first, or choose another id."
            )

    def add(self, task_id: str, length: int, prompt_ids: Sequence[int], salt: Hashable) -> bool:
        """Add a task of ``length`` tokens that begins with what is known of its prompt.

        Returns:
            False, with nothing changed, when no row or too few pages are free.
        """
        num_prompt = min(length, len(prompt_ids))
        # The last token is always left to compute: its logits are needed.
        known_ids = prompt_ids[: max(num_prompt - 1, 0)]
        hits = self._pages.find(known_ids, salt)
        fetched = self._fetch(known_ids, hits, length, salt)
        pages = self._reserve(hits, length, after=hits[-1] if hits else None)
        if pages is None:
            return False
        num_hits = len(hits)
        task = Task(-1, length, pages, salt, num_prompt, num_hits, num_hits, num_hits)
        self._place(task_id, task)
        if fetched:
            self._restore(task, fetched, known_ids)
        self._pages.count_lookup(task.num_cached, len(fetched), len(known_ids))
        return True

    def num_known(self, prompt_ids: Sequence[int], salt: Hashable) -> int:
        """Pages that a task with that prompt would find now; a query changes nothing."""
        known_ids = prompt_ids[: max(len(prompt_ids) - 1, 0)]
        hits = self._pages.find(known_ids, salt)
        if self._pages.offload is None:
            return len(hits)
        return len(hits) + self._pages.offload.count(known_ids, hits, salt)

    def fork(self, parent: Task, child_id: str, storage: KVStorage) -> bool:
        """Add a task that shares the parent's full pages and has a copy of a partial last one.

        Returns:
            False, with nothing changed, when no row or no page is free.

        Raises:
            DuplicateTaskError: the name is in use.
        """
        self.check_is_new(child_id)
        num_full = self._layout.full_pages(parent.length)
        pages = self._reserve(parent.pages[:num_full], parent.length)
        if pages is None:
            return False
        parent.num_shared = max(parent.num_shared, num_full)
        child = replace(
            parent,
            pages=pages,
            num_recorded=min(parent.num_recorded, num_full),
            num_shared=num_full,
        )
        self._place(child_id, child)
        start = num_full * self._layout.page_size
        if start < parent.length:
            source, target = (self._layout.slot(t.row, t.pages, start) for t in (parent, child))
            storage.copy_slots(source, target, parent.length - start)
        return True

    def resize(self, task: Task, length: int) -> bool:
        """Set a task's length, with more pages if it needs them; False when there are too few."""
        if length > task.num_slots:
            num_new = self._layout.pages_for(length) - len(task.pages)
            new = self._pages.reserve((), num_new, after=task.pages[-1] if task.pages else None)
            if new is None:
                return False
            self._table.write_pages(task.row, len(task.pages), new)
            task.pages.extend(new)
            task.num_slots = self._layout.slots_in(len(task.pages))
        task.length = length
        return True

    def remove(self, task_id: str) -> None:
        """Remove a task, if there is one of that name, and give back what it has."""
        task = self.by_id.pop(task_id, None)
        if task is not None:
            self._pages.release(task.pages)
            self._table.free([task.row])

    def record(self, task: Task, token_ids: Sequence[int]) -> None:
        """Make the full pages of ``token_ids``, the task's first tokens, findable."""
        if task.is_stale:
            return
        page_size = self._layout.page_size
        num_full = self._layout.full_pages(min(len(token_ids), task.length))
        for logical_page in range(task.num_recorded, num_full):
            parent = task.pages[logical_page - 1] if logical_page else None
            tokens = token_ids[logical_page * page_size : (logical_page + 1) * page_size]
            own = task.pages[logical_page]
            holder = self._pages.record(parent, tokens, own, task.salt)
            if holder != own:
                self._replace(task, logical_page, holder)
            task.num_recorded = logical_page + 1
            task.num_shared = max(task.num_shared, task.num_recorded)

    def make_stale(self) -> None:
        """Keep the content of all present tasks out of the prefix cache."""
        for task in self.by_id.values():
            task.num_recorded = 0
            task.is_stale = True

    def _fetch(
        self, known_ids: Sequence[int], hits: list[int], length: int, salt: Hashable
    ) -> list[tuple[Prefix, PageKV]]:
        """What the tiers have of a new task's prompt, if the task has room at all.

        They are read before pages are reserved, as that may push out of them what is wanted.
        """
        num_new = self._layout.pages_for(length) - len(hits)
        if self._pages.offload is None or not self._table.free_slots:
            return []
        if not self._pages.has_room(hits, num_new):
            return []
        return self._pages.offload.fetch(known_ids, hits, salt)

    def _restore(
        self, task: Task, fetched: list[tuple[Prefix, PageKV]], known_ids: Sequence[int]
    ) -> None:
        """Put pages that were fetched behind those that were found."""
        assert self._pages.offload is not None  # it has fetched them
        first, task.num_cached = task.num_cached, task.num_cached + len(fetched)
        self._pages.offload.restore(task.pages[first : task.num_cached], fetched)
        self.record(task, known_ids[: task.num_cached * self._layout.page_size])

    def _reserve(
        self, shared: list[int], length: int, *, after: int | None = None
    ) -> list[int] | None:
        """Pages for a new task, if a row is free for it too."""
        if not self._table.free_slots:
            return None
        return self._pages.reserve(
            shared, self._layout.pages_for(length) - len(shared), after=after
        )

    def _place(self, task_id: str, task: Task) -> None:
        rows = self._table.alloc(1)
        assert rows is not None  # _reserve has looked
        task.row = rows[0]
        task.num_slots = self._layout.slots_in(len(task.pages))
        self._table.write_pages(task.row, 0, task.pages)
        self.by_id[task_id] = task

    def _replace(self, task: Task, logical_page: int, page: int) -> None:
        """Put the recorded ``page`` in place of a task's own one of equal content."""
        own = task.pages[logical_page]
        holders = [task]
        if self._pages.allocator.ref_count(own) > 1:
            # Forked tasks move together: whoever holds a page holds the pages it continues.
            holders = [
                other
                for other in self.by_id.values()
                if logical_page < len(other.pages) and other.pages[logical_page] == own
            ]
        for holder in holders:
            self._pages.use([page])
            holder.pages[logical_page] = page
            self._table.write_pages(holder.row, logical_page, [page])
            self._pages.release([own])
