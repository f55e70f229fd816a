"""Checks for tests of whatever uses a pool."""

from collections import Counter
from itertools import pairwise

from astrai_kvcache.allocator import Allocator
from astrai_kvcache.offload import Offload
from astrai_kvcache.pool import PagePool
from astrai_kvcache.prefix_cache import PrefixCache
from astrai_kvcache.task_pages import Task


class InvariantError(AssertionError):
    """A pool is in a state that it promises never to be in."""


def check_invariants(pool: PagePool) -> None:
    """Prove that a pool keeps its promises; changes nothing.

    - Each page is free, cached or in use, and in only one of these; free pages are whole runs.
    - A page has as many uses as tasks and pins that name it.
    - A cached page can be found; a findable page is not free, and hangs below the page it continues
      under the same salt. Whoever uses it uses all pages it continues, and a page is never evicted
      before those that continue it.
    - A page that several tasks name, or that can be found, is one that none of them writes.
    - A task never had its whole prompt cached.
    - Tiers would keep each page by exactly the tokens and the salt it is found by.
    - Each task has its own row, enough pages for its length, and a table row that names them.

    Takes time in proportion to the pool. Meant for tests.

    Raises:
        InvariantError: saying which promise is broken.
    """
    allocator = pool._pages.allocator
    _check_states(allocator)
    _check_uses(pool)
    if pool._pages.prefix is not None:
        _check_prefixes(allocator, pool._pages.prefix)
        _check_recorded(pool, pool._pages.prefix)
        if pool._pages.offload is not None:
            _check_offload(pool._pages.offload, pool._pages.prefix)
    else:
        _require(allocator.num_cached == 0, "pages are cached without a prefix cache")
    _check_rows(pool)
    for task_id, task in pool._tasks.by_id.items():
        _check_task(pool, task_id, task)


def _require(condition: bool, broken: str) -> None:
    if not condition:
        raise InvariantError(broken)


def _check_states(allocator: Allocator) -> None:
    runs = allocator._free.runs()
    free = [page for start, end in runs for page in range(start, end)]
    cached = list(allocator._cached)
    in_use = [page for page in range(allocator.num_pages) if allocator.ref_count(page)]
    _require(
        sorted(free + cached + in_use) == list(range(allocator.num_pages)),
        f"free {free}, cached {cached} and in use {in_use} are not each page once",
    )
    _require(all(refs >= 0 for refs in allocator._refs), "a page has fewer than no users")
    _require(
        all(end < start for (_, end), (start, _) in pairwise(runs)),
        f"neighbouring free runs are not merged: {runs}",
    )
    counts = (allocator.num_free, allocator.num_cached, allocator.num_in_use)
    _require(
        counts == (len(free), len(cached), len(in_use)),
        f"counts {counts} differ from the pages themselves",
    )


def _check_uses(pool: PagePool) -> None:
    holders = [task.pages for task in pool._tasks.by_id.values()] + list(pool._pages.pins.values())
    for pages in holders:
        _require(len(set(pages)) == len(pages), f"a task or pin names a page twice: {pages}")
    uses = Counter(page for pages in holders for page in pages)
    for page in range(pool._pages.allocator.num_pages):
        count = pool._pages.allocator.ref_count(page)
        _require(count == uses[page], f"page {page} counts {count} users but has {uses[page]}")


def _check_prefixes(allocator: Allocator, prefix: PrefixCache) -> None:
    age = {page: position for position, page in enumerate(allocator._cached)}
    recorded = set(prefix.pages())
    _require(set(age) <= recorded, f"pages {set(age) - recorded} are cached but cannot be found")
    for page in recorded:
        users, parent = allocator.ref_count(page), prefix.parent_of(page)
        _require(users > 0 or page in age, f"page {page} can be found but is free")
        if parent < 0:
            continue
        _require(parent in recorded, f"page {page} can be found without the page it continues")
        _require(prefix.salt_of(page) == prefix.salt_of(parent), f"page {page} crosses salts")
        _require(
            allocator.ref_count(parent) >= users,
            f"page {page} has more users than the page it continues",
        )
        _require(
            parent not in age or age[page] < age[parent],
            f"page {page} would be evicted after the page it continues",
        )


def _check_recorded(pool: PagePool, prefix: PrefixCache) -> None:
    for task_id, task in pool._tasks.by_id.items():
        parent = -1
        for page in task.pages[: task.num_recorded]:
            _require(
                prefix.has_page(page) and prefix.parent_of(page) == parent,
                f"recorded pages of task {task_id!r} are not one path",
            )
            parent = page
    for pin_id, pages in pool._pages.pins.items():
        path = [-1, *pages]
        _require(
            all(prefix.parent_of(page) == path[i] for i, page in enumerate(pages)),
            f"pages of pin {pin_id!r} are not one path",
        )
    for page in prefix.pages():
        children = prefix._nodes[page].children
        _require(
            all(child.parent is prefix._nodes[page] for child in children.values()),
            f"page {page} has children that do not know it",
        )


def _check_offload(offload: Offload, prefix: PrefixCache) -> None:
    for page in prefix.pages():
        parent, own = prefix.parent_of(page), offload.prefix_of(page)
        above = offload.prefix_of(parent) if parent >= 0 else offload.root_of(prefix.salt_of(page))
        _require((own is None) == (above is None), f"page {page} has lost what it is kept by")
        _require(
            own is None or (own.parent is above and own.tokens == prefix._nodes[page].key),
            f"page {page} would be kept by other tokens than its own",
        )
    _require(
        set(offload._by_page) <= set(prefix.pages()), "a page that cannot be found would be kept"
    )


def _check_rows(pool: PagePool) -> None:
    table = pool._table
    rows = [task.row for task in pool._tasks.by_id.values()]
    _require(
        sorted([*rows, *table.free_slots]) == list(range(table.size)),
        f"rows {rows} of tasks and free rows {list(table.free_slots)} are not each row once",
    )
    _require(
        all(table._is_free[row] == (row in table.free_slots) for row in range(table.size)),
        "a row's state differs from the list of free rows",
    )


def _check_task(pool: PagePool, task_id: str, task: Task) -> None:
    name, size = f"task {task_id!r}", pool.page_size
    _require(0 <= task.length <= pool.max_seq_len, f"{name} has {task.length} tokens")
    num_slots = pool._layout.slots_in(len(task.pages))
    _require(task.num_slots == num_slots, f"{name} has {num_slots} slots, not {task.num_slots}")
    if pool.contiguous:
        start = task.row * pool.max_seq_len
        slots = pool._table._table[task.row].tolist()
        _require(slots == list(range(start, start + len(slots))), f"the row of {name} is not its")
        _require(not task.pages, f"{name} has pages in contiguous mode")
        return
    _require(task.length <= len(task.pages) * size, f"{name} has too few pages")
    _require(
        task.num_cached == 0 or task.num_cached * size < task.num_prompt,
        f"{name} had its last token cached",
    )
    for logical_page, page in enumerate(task.pages):
        start = logical_page * size
        named = pool._table.pending_page(task.row, logical_page)
        expected = (page if named is None else named) * size
        slots = pool._table._table[task.row, start : start + size].tolist()
        _require(
            expected == page * size
            and (named is not None or slots == list(range(expected, expected + size))),
            f"the table row of {name} does not name page {page} at {start}",
        )
        if logical_page >= task.num_shared:
            shared = pool._pages.allocator.ref_count(page) > 1 or (
                pool._pages.prefix is not None and pool._pages.prefix.has_page(page)
            )
            _require(not shared, f"{name} may write page {page}, which others may read")
