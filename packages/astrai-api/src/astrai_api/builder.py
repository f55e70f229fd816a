"""What a protocol is: one :class:`ResponseBuilder`, from wire request to wire response."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.served_models import ServedModels
from astrai_api.sse import COMMENT_PING
from astrai_engine.events import Finished, TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """What a builder knows of the HTTP request besides its body.

    Attributes:
        request_id: the id in the ``x-request-id`` header.
        models: the names the model is served by.
        cache_salt: the caller's share of the prefix cache; None is the common one.
        deadline: ``time.monotonic()`` value after which the request fails.
    """

    request_id: str | None = None
    models: ServedModels = field(default_factory=ServedModels)
    cache_salt: str | None = None
    deadline: float | None = None


@dataclass
class Choice:
    """One of the ``n`` answers, as far as it has come."""

    index: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, delta: TokenDelta) -> None:
        """Append what a delta brings."""
        self.pieces.append(delta.text)
        self.logprobs.extend(delta.logprobs)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.pieces)

    @property
    def end(self) -> Finished:
        """The event that ended it; only asked for once there is one."""
        assert self.finished is not None
        return self.finished


def total_usage(choices: Sequence[Choice]) -> Usage:
    """The counts of a whole response: the prompt once, the output of every choice."""
    first = choices[0].end.usage
    return Usage(
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        completion_tokens=sum(choice.end.usage.completion_tokens for choice in choices),
    )


class ResponseBuilder(ABC, Generic[RequestT]):
    """One protocol's wire format; an instance serves one request.

    The handler calls ``prepare`` first. Then either ``format_response``, or
    ``format_stream_start``, ``format_chunk`` for each delta, and ``format_stream_end`` or
    ``format_stream_error``. Stream methods return whole server-sent events, or nothing.
    """

    ping: ClassVar[bytes] = COMMENT_PING
    """What keeps a silent stream alive."""

    def __init__(self, context: RequestContext | None = None) -> None:
        self.context = context or RequestContext()

    @abstractmethod
    def prepare(self, request: RequestT, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request. Must be quick: it runs on the event loop.

        Raises:
            ApiError: the protocol refuses the request.
            InvalidRequestError: the engine's own checks refuse it.
        """

    @abstractmethod
    def format_stream_start(self, usage: Usage) -> bytes:
        """What opens the stream; ``usage`` holds the prompt's counts."""

    @abstractmethod
    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text of one choice; empty when the delta brings nothing to show."""

    @abstractmethod
    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """What closes the stream once every choice has finished."""

    @abstractmethod
    def format_stream_error(self, error: ApiError) -> bytes:
        """What closes the stream when the generation fails midway."""

    @abstractmethod
    def format_response(self, choices: Sequence[Choice]) -> Mapping[str, Any]:
        """The body of a response that is not streamed."""
