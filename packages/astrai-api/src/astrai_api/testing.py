"""A scripted engine for tests of the API and of programs built on it: no torch, no model.

``FakeEngine()`` answers everything with one fixed text. Queue a :class:`Reply` to say what the
next request gets::

    gate = Gate()
    engine = FakeEngine.scripted(Reply("Hi", gate, "!"), Reply(refuse=GenerationError("no")))
    app = create_app(engine=engine, settings=Settings())

Its tokens are words. It honours ``max_tokens``, ``stop``, ``n``, ``logprobs`` and the context
length as a real engine does.
"""

import asyncio
import itertools
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from astrai_api.gate import Gate, first_open
from astrai_engine.errors import AstraiError, EngineUnavailableError, PromptTooLongError
from astrai_engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from astrai_engine.request import GenerationRequest

__all__ = ["DEFAULT_TEXT", "FakeEngine", "FakeHandle", "FakeInfo", "Gate", "Reply"]

DEFAULT_TEXT = "Once upon a time a quick red fox found a warm den under the old oak tree."
_WORDS = re.compile(r"\s*\S+|\s+$")


class Reply:
    """What one request gets.

    Args:
        *script: in order, text to say, gates to wait at, errors to fail with, or events passed
            on as they are. Text ends with ``Finished`` by itself.
        refuse: raised by ``submit_async`` instead.
        cached_tokens: how much of the prompt the prefix cache is said to have had.
    """

    def __init__(
        self,
        *script: str | Gate | AstraiError | Event,
        refuse: Exception | None = None,
        cached_tokens: int = 0,
    ) -> None:
        self.script = script
        self.refuse = refuse
        self.cached_tokens = cached_tokens


@dataclass(frozen=True)
class FakeInfo:
    """What the fake engine says it runs."""

    model: str = "fake-model"
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "fake"
    n_tokens: int = 8192
    page_size: int = 16
    max_seq_len: int = 4096


class FakeHandle:
    """One request of a :class:`FakeEngine`.

    Attributes:
        aborted: opens when the request is aborted before its end.
    """

    def __init__(
        self, request_id: str, request: GenerationRequest, reply: Reply, stopped: Gate
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.aborted = Gate()
        self.num_prompt_tokens = count_words(request)
        self._reply = reply
        self._stopped = stopped
        self._ended = False

    def abort(self) -> None:
        """Stop the request; a no-op once it has ended."""
        if not self._ended:
            self.aborted.open()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Play the script once for every choice, one after the other."""
        try:
            for index in range(self.request.n):
                async for event in self._play(index):
                    self._ended = self._ended or (
                        index == self.request.n - 1 and not isinstance(event, TokenDelta)
                    )
                    yield event
        except AstraiError as error:
            self._ended = True
            yield Failed(error)

    async def _play(self, index: int) -> AsyncIterator[Event]:
        choice = _FakeChoice(self, self._reply, index)
        for step in self._reply.script:
            if isinstance(step, Gate):
                await first_open(step, self._stopped, self.aborted)
                if self._stopped.is_open:
                    raise EngineUnavailableError("The engine has been shut down.")
                if self.aborted.is_open:
                    yield choice.end(FinishReason.ABORTED)
                    return
            elif isinstance(step, AstraiError):
                raise step
            elif isinstance(step, str):
                for event in choice.say(step):
                    yield event
                    await asyncio.sleep(0)
            else:
                yield step
                if not isinstance(step, TokenDelta):
                    return
            if choice.finished:
                return
        yield choice.end(FinishReason.STOP)


class _FakeChoice:
    """Says words until it is told to stop, or has to."""

    def __init__(self, handle: FakeHandle, reply: Reply, index: int) -> None:
        self.finished = False
        self._request = handle.request
        self._num_prompt_tokens = handle.num_prompt_tokens
        self._cached_tokens = reply.cached_tokens
        self._index = index
        self._text = ""
        self._num_tokens = 0

    def say(self, text: str) -> Iterator[Event]:
        """The events of a text; the last is ``Finished`` when a limit or a stop string ends it."""
        before = len(self._text)
        cut, stop = self._leftmost_stop(self._text + text)
        for match in _WORDS.finditer(text):
            if self._num_tokens == self._request.max_tokens:
                yield self.end(FinishReason.LENGTH)
                return
            self._num_tokens += 1
            word = match.group()[: max(0, cut - before - match.start())]
            self._text += word
            if word:
                yield self._delta(word)
            if stop is not None and before + match.end() >= cut + len(stop):
                yield self.end(FinishReason.STOP, stop)
                return

    def _leftmost_stop(self, text: str) -> tuple[int, str | None]:
        found = [(text.find(stop), stop) for stop in self._request.stop if stop in text]
        return min(found) if found else (len(text), None)

    def end(self, reason: FinishReason, stop: str | None = None) -> Finished:
        """The last event. Ending by itself takes one more token, which has no text."""
        self.finished = True
        if reason is FinishReason.STOP and stop is None:
            if self._num_tokens == self._request.max_tokens:
                reason = FinishReason.LENGTH
            else:
                self._num_tokens += 1
        return Finished(reason, self._usage(), self._index, stop)

    def _usage(self) -> Usage:
        return Usage(self._num_prompt_tokens, self._cached_tokens, self._num_tokens)

    def _delta(self, word: str) -> TokenDelta:
        token_id = self._num_tokens
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._request.logprobs:
            ranks = range(self._request.top_logprobs)
            top = tuple(_alternative(word, token_id, rank) for rank in ranks)
            logprobs = (TokenLogprob(token_id, word, word.encode(), -0.5, top),)
        return TokenDelta(word, (token_id,), self._usage(), self._index, logprobs)


def _alternative(word: str, token_id: int, rank: int) -> TopLogprob:
    text = word if rank == 0 else f"{word}{rank}"
    return TopLogprob(token_id + rank, text, text.encode(), -0.5 - 2.0 * rank)


def count_words(request: GenerationRequest) -> int:
    """Prompt tokens as the fake engine counts them: roles and words."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    if request.prompt is not None:
        return len(request.prompt.split())
    return sum(1 + len(str(message["content"]).split()) for message in request.messages or ())


@dataclass
class FakeEngine:
    """An engine that plays replies in order, then one default for good.

    Attributes:
        replies: what the next requests get.
        default: the text, or a function from request to text, once ``replies`` is empty.
        name: the model's name for clients.
        info: what it says it runs.
        is_healthy: set it to False to play a lost engine.
        handles: every accepted request, in order.
        draining: ``begin_drain`` was called.
        stopped: opens when ``shutdown`` is called.
    """

    replies: deque[Reply] = field(default_factory=deque)
    default: str | Callable[[GenerationRequest], str] = DEFAULT_TEXT
    name: str = "fake-model"
    info: FakeInfo = field(default_factory=FakeInfo)
    is_healthy: bool = True
    handles: list[FakeHandle] = field(default_factory=list, init=False)
    draining: bool = field(default=False, init=False)
    stopped: Gate = field(default_factory=Gate, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False, repr=False)

    @classmethod
    def scripted(cls, *replies: Reply, **fields: Any) -> "FakeEngine":
        """An engine with these replies queued."""
        return cls(deque(replies), **fields)

    @property
    def requests(self) -> Sequence[GenerationRequest]:
        """Every accepted request, in order."""
        return [handle.request for handle in self.handles]

    async def submit_async(self, request: GenerationRequest) -> FakeHandle:
        """Take the next reply for this request.

        Raises:
            EngineUnavailableError: the engine drains.
            PromptTooLongError: more words than the context.
            Exception: what the reply refuses with.
        """
        if self.draining:
            raise EngineUnavailableError("The engine is shutting down; try another server.")
        reply = self.replies.popleft() if self.replies else Reply(self._default_text(request))
        if reply.refuse is not None:
            raise reply.refuse
        limit, words = self.info.max_seq_len, count_words(request)
        if words >= limit:
            raise PromptTooLongError(words, limit - 1, limit)
        handle = FakeHandle(f"req-{next(self._numbers)}", request, reply, self.stopped)
        self.handles.append(handle)
        return handle

    def _default_text(self, request: GenerationRequest) -> str:
        return self.default if isinstance(self.default, str) else self.default(request)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Roles and words of the prompt."""
        return count_words(request)

    def get_stats(self) -> dict[str, Any]:
        """The counters that every engine has."""
        return {
            "total_tasks": len(self.handles),
            "total_tokens": 0,
            "active_tasks": 0,
            "waiting_queue": 0,
        }

    def begin_drain(self) -> None:
        """Refuse new requests."""
        self.draining = True

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002 (nothing to wait for)
        """Refuse new requests for good, and fail those that wait at a gate."""
        self.draining = True
        self.stopped.open()
