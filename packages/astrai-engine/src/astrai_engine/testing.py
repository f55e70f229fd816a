"""Doubles for tests of scheduling and of what is built on the engine: no torch, no weights."""

from collections.abc import Callable, Hashable, Sequence

from astrai_engine.events import Event
from astrai_engine.sampling.sampler import SampledToken
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence as TokenSequence
from astrai_engine.stopwatch import Stopwatch


class CountingCache:
    """A page cache that only counts: the scheduler's side of ``PagePool`` on plain integers.

    Full pages offered to it are remembered by their whole prefix and reused, as long as free
    pages last; it forgets them all when it runs out.

    Args:
        num_pages: pages in the pool.
        page_size: tokens in a page.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.lengths: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._salts: dict[str, Hashable] = {}
        self._prefixes: set[tuple[Hashable, tuple[int, ...]]] = set()

    num_cached_pages = 0  # what it remembers takes no pages

    @property
    def num_free_pages(self) -> int:
        """Pages that no task holds."""
        return self.num_pages - sum(self._pages(length) for length in self.lengths.values())

    def prefix_len(self, prompt_ids: list[int], *, salt: Hashable = None) -> int:
        """Tokens of the prompt whose pages are remembered; never the last token."""
        cached = 0
        while cached + self.page_size < len(prompt_ids):
            if (salt, tuple(prompt_ids[: cached + self.page_size])) not in self._prefixes:
                break
            cached += self.page_size
        return cached

    def task_alloc(
        self,
        task_id: str,
        prompt_ids: list[int],
        *,
        num_tokens: int | None = None,
        salt: Hashable = None,
    ) -> bool:
        """Take pages for the first ``num_tokens``; False changes nothing."""
        assert task_id not in self.lengths, f"{task_id} is allocated twice"
        wanted = len(prompt_ids) if num_tokens is None else num_tokens
        if self._pages(wanted) > self.num_free_pages:
            return False
        self._cached[task_id] = self.prefix_len(prompt_ids, salt=salt)
        self._salts[task_id] = salt
        self.lengths[task_id] = wanted
        return True

    def task_extend(self, task_id: str, pos: int) -> bool:
        """Take pages up to and including ``pos``; False changes nothing."""
        more = self._pages(pos + 1) - self._pages(self.lengths[task_id])
        if more > self.num_free_pages:
            return False
        self.lengths[task_id] = pos + 1
        return True

    def task_cached(self, task_id: str) -> int:
        """Tokens that were reused when the task was allocated."""
        return self._cached[task_id]

    def task_record_hashes(
        self, task_id: str, prompt_ids: list[int], start_logical_page: int = 0
    ) -> None:
        """Remember the task's full pages from ``start_logical_page`` on."""
        assert len(prompt_ids) <= self.lengths[task_id], "recorded before it was computed"
        for page in range(start_logical_page, len(prompt_ids) // self.page_size):
            prefix = tuple(prompt_ids[: (page + 1) * self.page_size])
            self._prefixes.add((self._salts[task_id], prefix))

    def task_free(self, task_id: str) -> None:
        """Give the task's pages back."""
        del self.lengths[task_id]

    def page_states(self) -> bytes:
        """Pages that tasks hold, then free ones."""
        return bytes([2] * (self.num_pages - self.num_free_pages) + [0] * self.num_free_pages)

    def task_pages(self, task_id: str) -> list[int]:
        """As if tasks lay one behind the other."""
        first = 0
        for name, length in self.lengths.items():
            end = first + self._pages(length)
            if name == task_id:
                return list(range(first, end))
            first = end
        return []

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)


class ScriptedExecutor:
    """Stands in for the model: the next token is whatever the script says.

    Args:
        script: gives the token after a sequence; it may raise, as a model may.

    Attributes:
        steps: what ran in each step, as (task id, number of tokens) pairs.
    """

    def __init__(self, script: Callable[[TokenSequence], int | SampledToken]) -> None:
        self._script = script
        self.steps: list[list[tuple[str, int]]] = []

    def execute(
        self, batch: Sequence[ScheduledSequence], stopwatch: Stopwatch
    ) -> list[list[SampledToken]]:
        """Ask the script for the tokens of each part of the batch that samples."""
        self.steps.append(
            [(item.sequence.task_id, item.num_tokens + len(item.draft)) for item in batch]
        )
        tokens = [self._tokens(item) for item in batch if item.samples]
        stopwatch.lap("forward")
        return tokens

    def _tokens(self, item: ScheduledSequence) -> list[SampledToken]:
        tokens: list[SampledToken] = []
        for guess in (*item.draft, None):
            token = self._script(item.sequence.after(t.token_id for t in tokens))
            tokens.append(token if isinstance(token, SampledToken) else SampledToken(token))
            if tokens[-1].token_id != guess:
                break
        return tokens


class RecordingSink:
    """Keeps the events it gets."""

    loop = None

    def __init__(self) -> None:
        self.events: list[Event] = []

    def deliver(self, events: Sequence[Event]) -> None:
        """Keep the events."""
        self.events.extend(events)


class PieceTokenizer:
    """A vocabulary given as its pieces of text: token ``i`` is the ``i``-th piece.

    Args:
        pieces: the bytes of each token; none for a control token.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token's text."""
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """A token's text, for people to read."""
        return self._pieces[token_id].decode("utf-8", "replace")
