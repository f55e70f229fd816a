"""A request of the scripted engine: what it is to say, and the events that say it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic

from astrai_api.fake_tokenizer import FakeTokenizer
from astrai_api.gate import Gate, first_open
from astrai_engine.errors import AstraiError, EngineUnavailableError
from astrai_engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    Timing,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from astrai_engine.request import GenerationRequest

_WORDS = re.compile(r"\s*\S+|\s+$")


class Reply:
    """What one request gets.

    Args:
        *script: in order, text to say, gates to wait at, errors to fail with, or events passed
            on as they are. Text ends with ``Finished`` by itself.
        refuse: raised by ``submit_async`` instead.
        cached_tokens: how much of the prompt the prefix cache is said to have had.
        prompt_end: how the rendered prompt is said to end.
    """

    def __init__(
        self,
        *script: str | Gate | AstraiError | Event,
        refuse: Exception | None = None,
        cached_tokens: int = 0,
        prompt_end: str = "",
    ) -> None:
        self.script = script
        self.refuse = refuse
        self.cached_tokens = cached_tokens
        self.prompt_end = prompt_end


class FakeHandle:
    """One request of a ``FakeEngine``.

    Args:
        request_id: the engine's own id.
        request: what was asked for.
        prompt_ids: its prompt.
        reply: what it gets.
        stopped: opens when the engine stops.
        on_ended: told once of every choice, with why it ended.

    Attributes:
        aborted: opens when the request is aborted before its end.
        submitted_at: ``time.monotonic()`` of its arrival.
    """

    def __init__(
        self,
        request_id: str,
        request: GenerationRequest,
        prompt_ids: list[int],
        reply: Reply,
        *,
        tokenizer: FakeTokenizer,
        stopped: Gate,
        on_ended: Callable[["FakeHandle", FinishReason, Usage], None],
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.aborted = Gate()
        self.num_prompt_tokens = len(prompt_ids)
        self.prompt_end = reply.prompt_end
        self._prompt_ids = prompt_ids
        self._reply = reply
        self._tokenizer = tokenizer
        self._stopped = stopped
        self._on_ended = on_ended
        self._num_open = request.n
        self.submitted_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether any of its choices has not ended."""
        return self._num_open > 0

    def abort(self) -> None:
        """Stop the request; a no-op once it has ended."""
        if self._num_open:
            self.aborted.open()
        self._end_all(FinishReason.ABORTED)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Play the script once for every choice, one after the other."""
        try:
            if self.request.prompt_logprobs is not None:
                yield self._prompt_logprobs(self.request.prompt_logprobs)
            for index in range(self.request.n):
                async for event in self._play(index):
                    if isinstance(event, Finished):
                        self._end(event.reason, event.usage)
                    yield event
        except AstraiError as error:
            self._end_all(FinishReason.ERROR)
            yield Failed(error)

    def _end(self, reason: FinishReason, usage: Usage) -> None:
        if self._num_open:
            self._num_open -= 1
            self._on_ended(self, reason, usage)

    def _end_all(self, reason: FinishReason) -> None:
        while self._num_open:
            self._end(reason, self._prompt_usage)

    @property
    def _prompt_usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self._reply.cached_tokens, 0)

    def _prompt_logprobs(self, num_top: int) -> PromptLogprobs:
        words = [(i, self._tokenizer.token_bytes(i)) for i in self._prompt_ids[1:]]
        entries = [_entry(token_id, word, num_top) for token_id, word in words]
        return PromptLogprobs((None, *entries), self._prompt_usage)

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
        self._started_at = monotonic()
        self._first_token_at: float | None = None
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
            self._first_token_at = self._first_token_at or monotonic()
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
        logprobs: tuple[TokenLogprob, ...] = ()
        if reason is FinishReason.STOP and stop is None:
            if self._num_tokens == self._request.max_tokens:
                reason = FinishReason.LENGTH
            else:
                self._num_tokens += 1
                logprobs = self._logprobs(b"")
        timing = Timing(self._started_at, self._started_at, self._first_token_at, monotonic())
        return Finished(reason, self._usage(), self._index, stop, logprobs, timing)

    def _usage(self) -> Usage:
        return Usage(self._num_prompt_tokens, self._cached_tokens, self._num_tokens)

    def _delta(self, word: str) -> TokenDelta:
        logprobs = self._logprobs(word.encode())
        return TokenDelta(word, (self._num_tokens,), self._usage(), self._index, logprobs)

    def _logprobs(self, word: bytes) -> tuple[TokenLogprob, ...]:
        if not self._request.logprobs:
            return ()
        return (_entry(self._num_tokens, word, self._request.top_logprobs),)


def _entry(token_id: int, word: bytes, num_top: int) -> TokenLogprob:
    text = word.decode("utf-8", "replace")
    top = tuple(_alternative(token_id, word, rank) for rank in range(num_top))
    return TokenLogprob(token_id, text, word, -0.5, top)


def _alternative(token_id: int, word: bytes, rank: int) -> TopLogprob:
    spelled = word + str(rank).encode() if rank else word
    text = spelled.decode("utf-8", "replace")
    return TopLogprob(token_id + rank, text, spelled, -0.5 - 2.0 * rank)
