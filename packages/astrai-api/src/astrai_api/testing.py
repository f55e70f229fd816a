"""A scripted engine for tests of the API and of programs built on it: no torch, no model.

``FakeEngine()`` answers everything with one fixed text. Queue a :class:`Reply` to say what the
next request gets::

    gate = Gate()
    engine = FakeEngine.scripted(Reply("Hi", gate, "!"), Reply(refuse=GenerationError("no")))
    app = create_app(engine=engine, settings=Settings())

Its tokens are words. It honours ``max_tokens``, ``stop``, ``n``, ``logprobs``,
``prompt_logprobs`` and the context length as a real engine does. ``python -m astrai_api.testing``
serves it.
"""

import argparse
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from astrai_api.application import create_app
from astrai_api.fake_handle import FakeHandle, Reply
from astrai_api.fake_live import fake_frame
from astrai_api.fake_tokenizer import FakeTokenizer
from astrai_api.gate import Gate
from astrai_api.settings import load_settings
from astrai_engine.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    PromptTooLongError,
)
from astrai_engine.events import FinishReason, Usage
from astrai_engine.live_frame import EndedRequest, LiveFrame
from astrai_engine.request import GenerationRequest

__all__ = [
    "DEFAULT_TEXT",
    "FakeEngine",
    "FakeHandle",
    "FakeInfo",
    "FakeTokenizer",
    "Gate",
    "Reply",
]

DEFAULT_TEXT = "Once upon a time a quick red fox found a warm den under the old oak tree."


@dataclass(frozen=True)
class FakeInfo:
    """What the fake engine says it runs."""

    model: str = "fake-model"
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "fake"
    vocab_size: int = 65536
    n_tokens: int = 8192
    page_size: int = 16
    max_seq_len: int = 4096
    max_batch_size: int = 32
    chat_template: str | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


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
        finished: how many choices ended, by reason.
        draining: ``begin_drain`` was called.
        stopped: opens when ``shutdown`` is called.
        tokenizer: words to ids and back.
    """

    replies: deque[Reply] = field(default_factory=deque)
    default: str | Callable[[GenerationRequest], str] = DEFAULT_TEXT
    name: str = "fake-model"
    info: FakeInfo = field(default_factory=FakeInfo)
    is_healthy: bool = True
    handles: list[FakeHandle] = field(default_factory=list, init=False)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer, init=False)
    finished: dict[FinishReason, int] = field(init=False)
    draining: bool = field(default=False, init=False)
    stopped: Gate = field(default_factory=Gate, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False, repr=False)

    def __post_init__(self) -> None:
        self.finished = dict.fromkeys(FinishReason, 0)
        self._usage = Usage(0, 0, 0)
        self._ended: list[EndedRequest] = []
        self._news = Gate()

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
            InvalidRequestError: an empty prompt, or a token id outside the vocabulary.
            PromptTooLongError: more words than the context.
            Exception: what the reply refuses with.
        """
        if self.draining:
            raise EngineUnavailableError("The engine is shutting down; try another server.")
        reply = self.replies.popleft() if self.replies else Reply(self._default_text(request))
        if reply.refuse is not None:
            raise reply.refuse
        handle = FakeHandle(
            f"req-{next(self._numbers)}",
            request,
            self.encode_prompt(request),
            reply,
            tokenizer=self.tokenizer,
            stopped=self.stopped,
            on_ended=self._count,
        )
        self.handles.append(handle)
        self._tell()
        return handle

    def _count(self, handle: FakeHandle, reason: FinishReason, usage: Usage) -> None:
        self.finished[reason] += 1
        self._usage = Usage(
            self._usage.prompt_tokens + usage.prompt_tokens,
            self._usage.cached_tokens + usage.cached_tokens,
            self._usage.completion_tokens + usage.completion_tokens,
        )
        self._ended.append(
            EndedRequest(
                task_id=f"{handle.request_id}.0",
                request_id=handle.request.request_id,
                reason=reason,
                submitted_at=handle.submitted_at,
                ended_at=time.monotonic(),
                num_prompt_tokens=usage.prompt_tokens,
                num_cached=usage.cached_tokens,
                num_generated=usage.completion_tokens,
            )
        )
        self._tell()

    def _default_text(self, request: GenerationRequest) -> str:
        return self.default if isinstance(self.default, str) else self.default(request)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Roles and words of the prompt."""
        return len(self.encode_prompt(request))

    def encode_prompt(self, request: GenerationRequest) -> list[int]:
        """Ids of the prompt; those of a chat are its roles and words.

        Raises:
            InvalidRequestError: an empty prompt, or a token id outside the vocabulary.
            PromptTooLongError: more words than the context.
        """
        token_ids = self._token_ids(request)
        if not token_ids:
            raise InvalidRequestError("The prompt has no tokens; give some text.", param="prompt")
        outside = [i for i in token_ids if not 0 <= i < self.info.vocab_size]
        if outside:
            raise InvalidRequestError(
                f"Token id {outside[0]} is outside the vocabulary.", param="prompt_token_ids"
            )
        limit = self.info.max_seq_len
        if len(token_ids) >= limit:
            raise PromptTooLongError(len(token_ids), limit - 1, limit)
        return token_ids

    def _token_ids(self, request: GenerationRequest) -> list[int]:
        if request.prompt_token_ids is not None:
            return list(request.prompt_token_ids)
        messages = request.messages or ()
        parts = [f" {message['role']} {message['content']}" for message in messages]
        text = "".join(parts) if request.prompt is None else request.prompt
        return self.tokenizer.encode(text, add_special_tokens=True)

    def get_stats(self) -> dict[str, Any]:
        """The counters that every engine has, and those that metrics are made of."""
        num_choices = sum(request.n for request in self.requests)
        return {
            "total_tasks": num_choices,
            "total_tokens": self._usage.completion_tokens,
            "active_tasks": num_choices - sum(self.finished.values()),
            "waiting_queue": 0,
            "prompt_tokens": self._usage.prompt_tokens,
            "cached_tokens": self._usage.cached_tokens,
            "finished": {reason.value: count for reason, count in self.finished.items()},
            "preemptions": 0,
            "drafted_tokens": 0,
            "accepted_tokens": 0,
            "steps": self._usage.completion_tokens,
            "pages": {
                "total": 512,
                "free": 512,
                "cached": 0,
                "in_use": 0,
                "evictions": 0,
                "restores": 0,
            },
            "tiers": {"host": {"pages": 0, "bytes": 0}, "disk": {"pages": 0, "bytes": 0}},
        }

    async def watch(self) -> AsyncGenerator[LiveFrame, None]:
        """A frame now, and one whenever a request comes or ends.

        Raises:
            EngineUnavailableError: the engine has been shut down.
        """
        if self.stopped.is_open:
            raise EngineUnavailableError("The engine is shut down.")
        num_seen = len(self._ended)
        for number in itertools.count(1):
            news, ended = self._news, self._ended[num_seen:]
            num_seen += len(ended)
            yield fake_frame(
                number,
                time.monotonic(),
                self.handles,
                ended,
                num_pages=self.info.n_tokens // self.info.page_size,
                page_size=self.info.page_size,
            )
            if self.draining and not any(handle.is_open for handle in self.handles):
                return
            await news.wait()

    def _tell(self) -> None:
        """Wake whoever watches."""
        news, self._news = self._news, Gate()
        news.open()

    def begin_drain(self) -> None:
        """Refuse new requests; whoever watches is told when the last has ended."""
        self.draining = True
        self._tell()

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002 (nothing to wait for)
        """Refuse new requests for good, and fail those that wait at a gate."""
        self.draining = True
        self.stopped.open()
        self._tell()


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m astrai_api.testing``: serve the scripted engine, to point clients at."""
    parser = argparse.ArgumentParser(description="Serve an engine without a model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    app = create_app(engine=FakeEngine(), settings=load_settings())
    uvicorn.run(app, host=options.host, port=options.port, access_log=False)


if __name__ == "__main__":
    main()
