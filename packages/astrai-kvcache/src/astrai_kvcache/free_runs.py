"""The free pages, kept as runs of consecutive pages."""

from collections.abc import Iterable


class FreeRuns:
    """A set of free pages that hands out consecutive ones when it can.

    Consecutive pages are consecutive memory, which attention reads faster. Runs are binned by the
    bit length of their size, so finding a large or a small one, splitting and merging all take
    constant time, whatever the number of pages.

    Args:
        num_pages: pages ``0 .. num_pages - 1`` are free at first.

    Attributes:
        num_pages: free pages now.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._end_of: dict[int, int] = {}  # first page of a run -> first page after it
        self._start_of: dict[int, int] = {}  # and back
        self._bins: list[dict[int, None]] = [{} for _ in range(num_pages.bit_length() + 1)]
        self._filled = 0  # bit i is set when bin i holds a run
        self._insert(0, num_pages)

    def runs(self) -> list[tuple[int, int]]:
        """All runs as ``(first page, first page after)``, in ascending order."""
        return sorted(self._end_of.items())

    def add(self, page: int) -> None:
        """Return ``page``, which is not in the set, and merge it with its neighbours."""
        self._add_run(page, page + 1)

    def add_many(self, pages: Iterable[int]) -> None:
        """Return pages that are not in the set; fast where each comes just before the last."""
        run: range | None = None
        for page in pages:
            if run is not None and page + 1 == run.start:
                run = range(page, run.stop)
                continue
            if run is not None:
                self._add_run(run.start, run.stop)
            run = range(page, page + 1)
        if run is not None:
            self._add_run(run.start, run.stop)

    def take_one(self) -> int:
        """Take the first page of one of the smallest runs; the set is not empty."""
        start, end = self._pop((self._filled & -self._filled).bit_length() - 1)
        return self._cut(start, end, 0, 1).start

    def take(self, count: int, after: int | None) -> list[int]:
        """Take ``count`` pages, at most ``num_pages``, in as few runs as is cheap to find.

        Args:
            count: how many.
            after: the page they should follow directly if those are free; None for anywhere.

        Returns:
            The pages in the order in which a task should use them.
        """
        taken: list[int] = []
        if count and after is not None and after + 1 in self._end_of:
            start = after + 1
            taken.extend(self._cut(start, self._remove(start), 0, count))
        while len(taken) < count:
            wanted = count - len(taken)
            start, end = self._pop(self._filled.bit_length() - 1)
            # Out of the middle, so that the task before this run and the one that takes it can
            # both grow in place. Nobody is before page 0.
            skip = max((end - start - wanted) // 2, 0) if start else 0
            taken.extend(self._cut(start, end, skip, wanted))
        return taken

    def _add_run(self, start: int, end: int) -> None:
        self.num_pages += end - start
        if start in self._start_of:
            start = self._start_of[start]
            self._remove(start)
        if end in self._end_of:
            end = self._remove(end)
        self._insert(start, end)

    def _cut(self, start: int, end: int, skip: int, count: int) -> range:
        """Take up to ``count`` pages of a removed run after leaving ``skip``; put back the rest."""
        first = start + skip
        last = min(first + count, end)
        self._insert(start, first)
        self._insert(last, end)
        self.num_pages -= last - first
        return range(first, last)

    def _insert(self, start: int, end: int) -> None:
        if start == end:
            return
        self._end_of[start] = end
        self._start_of[end] = start
        size_class = (end - start).bit_length()
        self._bins[size_class][start] = None
        self._filled |= 1 << size_class

    def _remove(self, start: int) -> int:
        """Remove the run at ``start``; returns its end."""
        end = self._end_of.pop(start)
        del self._start_of[end]
        size_class = (end - start).bit_length()
        del self._bins[size_class][start]
        self._note_if_empty(size_class)
        return end

    def _pop(self, size_class: int) -> tuple[int, int]:
        """Remove the newest run of a bin that has one; returns its start and end."""
        start, _ = self._bins[size_class].popitem()
        self._note_if_empty(size_class)
        end = self._end_of.pop(start)
        del self._start_of[end]
        return start, end

    def _note_if_empty(self, size_class: int) -> None:
        if not self._bins[size_class]:
            self._filled ^= 1 << size_class
