"""What a protocol is: one :class:`ResponseBuilder`, from wire request to wire response."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.served_models import ServedModels
from astrai_api.sse import COMMENT_PING
from astrai_engine.events import (
    Event,
    Finished,
    PromptLogprobs,
    TokenDelta,
    TokenLogprob,
    Usage,
)
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
        observe: told of every event of an answer, for the server's metrics.
    """

    request_id: str | None = None
    models: ServedModels = field(default_factory=ServedModels)
    cache_salt: str | None = None
    deadline: float | None = None
    observe: Callable[[Event], None] = lambda _: None


@dataclass
class Choice:
    """One of the answers, as far as it has come."""

    index: int
    prompt: PromptLogprobs | None = None
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


def total_usage(choices: Sequence[Choice], num_prompts: int = 1) -> Usage:
    """The counts of a whole response: each prompt once, the output of every choice.

    Args:
        choices: all of them, those of one prompt side by side.
        num_prompts: how many prompts they answer.
    """
    firsts = [choice.end.usage for choice in choices[:: len(choices) // num_prompts]]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
        cached_tokens=sum(usage.cached_tokens for usage in firsts),
        completion_tokens=sum(choice.end.usage.completion_tokens for choice in choices),
    )


class ResponseBuilder(ABC, Generic[RequestT]):
    """One protocol's wire format; an instance serves one request.

    The handler calls ``plan`` first, which for most protocols is ``prepare``. Then either
    ``format_response``, or ``format_stream_start``, ``format_chunk`` for each delta (behind
    ``format_prompt``, where the protocol asked for it), and ``format_stream_end`` or
    ``format_stream_error``. Stream methods return whole server-sent events, or nothing.
    """

    ping: ClassVar[bytes] = COMMENT_PING
    """What keeps a silent stream alive."""

    answer: ClassVar[type[BaseModel] | None] = None
    """The body of a response that is not streamed, for the OpenAPI document."""

    def __init__(self, context: RequestContext | None = None) -> None:
        self.context = context or RequestContext()

    @abstractmethod
    def prepare(self, request: RequestT, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request. Must be quick: it runs on the event loop.

        Raises:
            ApiError: the protocol refuses the request.
            InvalidRequestError: the engine's own checks refuse it.
        """

    async def plan(self, request: RequestT, engine: EngineClient) -> Sequence[GenerationRequest]:
        """The generations that answer the wire request; several run side by side.

        The place for what takes an engine's help, such as tokenising.

        Raises:
            As :meth:`prepare`.
        """
        return [self.prepare(request, engine)]

    @abstractmethod
    def format_stream_start(self, usage: Usage) -> bytes:
        """What opens the stream; ``usage`` holds the prompt's counts."""

    def format_prompt(self, prompt: PromptLogprobs) -> bytes:  # noqa: ARG002 (most never ask)
        """What the stream tells of a prompt whose log-probabilities the protocol asked for."""
        return b""

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
