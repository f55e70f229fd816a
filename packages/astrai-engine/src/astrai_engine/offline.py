"""Generation over many requests: ordered results, a progress bar, and resumption after a crash."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from astrai_engine.delivery import EventSink
from astrai_engine.errors import AstraiError, QueueFullError, RequestError
from astrai_engine.events import Event, Failed, Finished, TokenDelta
from astrai_engine.request import GenerationRequest

Submit = Callable[[GenerationRequest, EventSink], str]
"""Starts a request whose events go to a sink, and gives its id."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of one request of a batch.

    Attributes:
        index: its place in the batch.
        texts: the text of each choice; what there was of it if the request failed.
        finish_reasons: why each choice ended.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens generated over all choices.
        error: why it failed, or None.
    """

    index: int
    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    error: str | None = None


def run_batch(
    submit: Submit,
    abort: Callable[[str], None],
    requests: Iterable[GenerationRequest],
    *,
    window: int,
    results_path: Path | None = None,
    progress: bool = True,
) -> list[BatchResult]:
    """Run requests a window at a time.

    A request that is refused or fails gets a result that says so; the others go on. Stopping
    early, by Ctrl-C too, aborts what runs.

    Args:
        submit: starts a request.
        abort: ends one.
        requests: what to run; consumed as places in the window become free.
        window: requests open at once.
        results_path: JSON lines file that each result is appended to. Results in it already, of
            equal requests at equal places, are taken from there.
        progress: show a progress bar on standard error.

    Returns:
        One result per request, in the order of the requests.
    """
    total = len(requests) if isinstance(requests, Sequence) else None
    with tqdm(total=total, disable=not progress, unit="request") as bar:
        run = _BatchRun(submit, window, _ResultStore(results_path), bar.update)
        try:
            for index, request in enumerate(requests):
                run.start(index, request)
            run.finish()
        finally:
            for request_id in run.open_ids.values():
                abort(request_id)
    return [run.results[index] for index in sorted(run.results)]


class _BatchRun:
    """A batch while it runs: what is open and what is done."""

    def __init__(
        self,
        submit: Submit,
        window: int,
        store: "_ResultStore",
        on_result: Callable[[], object],
    ) -> None:
        self.open_ids: dict[int, str] = {}
        self.results: dict[int, BatchResult] = {}
        self._submit = submit
        self._window = window
        self._store = store
        self._on_result = on_result
        self._collector = _Collector()

    def start(self, index: int, request: GenerationRequest) -> None:
        """Submit a request as soon as the window has a place, unless its result is known."""
        digest = request_digest(request)
        known = self._store.get(index, digest)
        if known is not None:
            self._keep(known)
            return
        while True:
            self._wait_for_place()
            try:
                sink = self._collector.sink(index, digest, request.n)
                self.open_ids[index] = self._submit(request, sink)
            except QueueFullError as error:  # others use the engine too
                self._collect(error.retry_after)
                continue
            except RequestError as error:
                self._keep(BatchResult(index, (), (), 0, 0, str(error)))
            return

    def finish(self) -> None:
        """Wait for everything that is open."""
        while self.open_ids:
            self._collect()

    def _wait_for_place(self) -> None:
        while len(self.open_ids) >= self._window:
            self._collect()

    def _collect(self, timeout: float | None = None) -> None:
        for digest, result in self._collector.wait(timeout):
            del self.open_ids[result.index]
            self._store.append(digest, result)
            self._keep(result)

    def _keep(self, result: BatchResult) -> None:
        self.results[result.index] = result
        self._on_result()


def request_digest(request: GenerationRequest) -> str:
    """A fingerprint of everything that a request asks for."""
    content = json.dumps(asdict(request), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class _ResultStore:
    """The JSON lines file that a batch can resume from."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[tuple[int, str], BatchResult] = {}
        if path is not None and path.exists():
            self._known = dict(_read_lines(path))
            _end_with_newline(path)

    def get(self, index: int, digest: str) -> BatchResult | None:
        return self._known.get((index, digest))

    def append(self, digest: str, result: BatchResult) -> None:
        if self._path is None or result.error is not None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"digest": digest, **asdict(result)}) + "\n")


def _read_lines(path: Path) -> Iterator[tuple[tuple[int, str], BatchResult]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields: dict[str, Any] = json.loads(line)
        except ValueError:  # the line that a crash cut short
            continue
        digest = fields.pop("digest")
        fields["texts"] = tuple(fields["texts"])
        fields["finish_reasons"] = tuple(fields["finish_reasons"])
        result = BatchResult(**fields)
        yield (result.index, digest), result


def _end_with_newline(path: Path) -> None:
    if not path.read_bytes().endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")


class _Collector:
    """Gathers events of many requests until they are complete."""

    def __init__(self) -> None:
        self._done: list[tuple[str, BatchResult]] = []
        self._changed = threading.Condition()

    def sink(self, index: int, digest: str, num_choices: int) -> "_BatchSink":
        return _BatchSink(self, index, digest, num_choices)

    def add(self, digest: str, result: BatchResult) -> None:
        with self._changed:
            self._done.append((digest, result))
            self._changed.notify()

    def wait(self, timeout: float | None = None) -> list[tuple[str, BatchResult]]:
        """Digests and results of what completed since the last call; waits for the first."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._done), timeout)
            done, self._done = self._done, []
            return done


class _BatchSink:
    """Builds the result of one request from its events."""

    loop = None

    def __init__(self, collector: _Collector, index: int, digest: str, num_choices: int) -> None:
        self._collector = collector
        self._index = index
        self._digest = digest
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._endings: dict[int, Finished | Failed] = {}

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events; runs on the engine's thread."""
        for event in events:
            if isinstance(event, TokenDelta):
                self._texts[event.index].append(event.text)
            elif isinstance(event, Finished | Failed):
                self._endings[event.index] = event
        if len(self._endings) == len(self._texts):
            self._collector.add(self._digest, self._result())

    def _result(self) -> BatchResult:
        endings = [self._endings[index] for index in range(len(self._texts))]
        finished = [ending for ending in endings if isinstance(ending, Finished)]
        errors: list[AstraiError] = [e.error for e in endings if isinstance(e, Failed)]
        return BatchResult(
            index=self._index,
            texts=tuple("".join(pieces) for pieces in self._texts),
            finish_reasons=tuple(ending.reason.value for ending in finished),
            prompt_tokens=finished[0].usage.prompt_tokens if finished else 0,
            completion_tokens=sum(ending.usage.completion_tokens for ending in finished),
            error=str(errors[0]) if errors else None,
        )
