"""How the token slots of a pool are divided among tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astrai_kvcache.errors import InvalidArgumentError, PromptTooLongError


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a pool, and what follows from them.

    Attributes:
        max_batch_size: tasks at once.
        max_seq_len: tokens per task.
        page_size: token slots in a page.
        n_tokens: token slots asked for; None is contiguous mode, where each row of the index table
            owns ``max_seq_len`` slots and no pages are allocated.

    Raises:
        InvalidArgumentError: a size is out of range.
    """

    max_batch_size: int
    max_seq_len: int
    page_size: int
    n_tokens: int | None

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_seq_len", "page_size"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.n_tokens is not None and self.n_tokens < self.page_size:
            raise InvalidArgumentError(
                f"n_tokens must be at least one page of {self.page_size}, not {self.n_tokens}."
            )

    @property
    def contiguous(self) -> bool:
        """Whether each row owns its slots, so that nothing is allocated or shared."""
        return self.n_tokens is None

    @property
    def num_pages(self) -> int:
        """Pages to allocate from."""
        return 0 if self.n_tokens is None else self.n_tokens // self.page_size

    @property
    def num_slots(self) -> int:
        """Token slots in storage, whole pages only."""
        if self.contiguous:
            return self.max_batch_size * self.max_seq_len
        return self.num_pages * self.page_size

    @property
    def max_task_tokens(self) -> int:
        """The longest that one task can ever be."""
        return min(self.max_seq_len, self.num_slots)

    def check_length(self, num_tokens: int) -> None:
        """Make sure that a task may have that many tokens.

        Raises:
            InvalidArgumentError: they are fewer than none.
            PromptTooLongError: they could not fit even if nothing else were in the pool.
        """
        if num_tokens < 0:
            raise InvalidArgumentError(f"num_tokens must not be negative, as {num_tokens} is.")
        if num_tokens > self.max_task_tokens:
            raise PromptTooLongError(num_tokens, self.max_task_tokens)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that a task of that length needs."""
        return 0 if self.contiguous else -(-num_tokens // self.page_size)

    def slots_in(self, num_pages: int) -> int:
        """Token slots of a task that has that many pages."""
        return self.max_seq_len if self.contiguous else num_pages * self.page_size

    def full_pages(self, num_tokens: int) -> int:
        """Pages that a task of that length fills."""
        return 0 if self.contiguous else num_tokens // self.page_size

    def slot(self, row: int, pages: Sequence[int], pos: int) -> int:
        """The token slot of a position of the task in ``row``."""
        if self.contiguous:
            return row * self.max_seq_len + pos
        return pages[pos // self.page_size] * self.page_size + pos % self.page_size

    def slots(self, row: int, pages: Sequence[int], start: int, end: int) -> Iterator[int]:
        """The token slots of positions ``start`` to ``end`` of the task in ``row``."""
        size = self.max_seq_len if self.contiguous else self.page_size
        for number in range(start // size, -(-end // size)):
            page = row if self.contiguous else pages[number]
            first, last = max(start, number * size), min(end, (number + 1) * size)
            offset = (page - number) * size
            yield from range(first + offset, last + offset)
