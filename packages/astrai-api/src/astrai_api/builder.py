"""What a protocol is: one :class:`ResponseBuilder`, from wire request to wire response."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from astrai_api.answer import Answer, BlockEvent
from astrai_api.answer_shape import AnswerShape
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.served_models import ServedModels
from astrai_api.sse import COMMENT_PING
from astrai_engine.events import (
    Event,
    Finished,
    FinishReason,
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
        planned: told of the client's name of the model and of the generations that will run.
        observe: told of every event as it comes, for the server's metrics.
        tool_parser: the operator's name of the format of tool calls; None is the model's own.
    """

    request_id: str | None = None
    models: ServedModels = field(default_factory=ServedModels)
    cache_salt: str | None = None
    deadline: float | None = None
    planned: Callable[[str, Sequence[GenerationRequest]], None] = lambda _model, _requests: None
    observe: Callable[[Event], None] = lambda _: None
    tool_parser: str | None = None


@dataclass
class Choice:
    """One of the answers, as far as it has come.

    Attributes:
        index: its number.
        answer: takes its text apart; None when all of it is for the user.
        news: what the last event made of ``answer``.
        prompt: the prompt's log-probabilities, if they were asked for.
        pieces: its text.
        logprobs: entries of its tokens.
        finished: the event that ended it.
    """

    index: int
    answer: Answer | None = None
    news: Sequence[BlockEvent] = ()
    prompt: PromptLogprobs | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, event: PromptLogprobs | TokenDelta | Finished) -> None:
        """Append what an event brings."""
        match event:
            case TokenDelta():
                self.pieces.append(event.text)
                self.logprobs.extend(event.logprobs)
                if self.answer is not None:
                    self.news = self.answer.push(event)
            case PromptLogprobs():
                self.prompt = event
            case Finished():
                self.finished = event
                if self.answer is not None:
                    self.news = self.answer.finish()

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.pieces)

    @property
    def reason(self) -> FinishReason:
        """Why it ended: when it ended by itself after calls, to have them run."""
        reason = self.end.reason
        if reason is FinishReason.STOP and self.answer is not None and self.answer.is_calls:
            return FinishReason.TOOL_CALLS
        return reason

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that went into reasoning."""
        return 0 if self.answer is None else self.answer.reasoning_tokens

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

    Attributes:
        context: the HTTP request besides its body.
        shape: of the answers; ``prepare`` sets it where the protocol has tools, reasoning or
            structured output. Unless it is plain, ``format_blocks`` stands in for
            ``format_chunk``.
    """

    ping: ClassVar[bytes] = COMMENT_PING
    """What keeps a silent stream alive."""

    answer: ClassVar[type[BaseModel] | None] = None
    """The body of a response that is not streamed, for the OpenAPI document."""

    def __init__(self, context: RequestContext | None = None) -> None:
        self.context = context or RequestContext()
        self.shape = AnswerShape()

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

    def format_blocks(
        self,
        index: int,  # noqa: ARG002 (only for protocols that set a shape)
        events: Sequence[BlockEvent],  # noqa: ARG002
        logprobs: Sequence[TokenLogprob],  # noqa: ARG002
    ) -> bytes:
        """What a delta makes of the blocks of one choice.

        Args:
            index: which choice.
            events: in their order; there may be none.
            logprobs: entries of the delta's tokens.
        """
        return b""

    @abstractmethod
    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """What closes the stream once every choice has finished."""

    @abstractmethod
    def format_stream_error(self, error: ApiError) -> bytes:
        """What closes the stream when the generation fails midway."""

    @abstractmethod
    def format_response(self, choices: Sequence[Choice]) -> Mapping[str, Any]:
        """The body of a response that is not streamed."""
