"""Chat completions: ``POST /v1/chat/completions``."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from astrai_api.answer import BlockEvent
from astrai_api.answer_shape import AnswerShape
from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.openai.answers import ChatCompletion
from astrai_api.openai.chat_blocks import chat_delta, chat_message
from astrai_api.openai.chunks import ChunkFormat
from astrai_api.openai.endings import FINISH_REASONS, usage_counts
from astrai_api.openai.logprobs import chat_logprobs
from astrai_api.openai.messages import template_messages
from astrai_api.openai.refusals import check_chat
from astrai_api.openai.sampling import sampling_fields
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.openai.structured_output import requested_output
from astrai_api.openai.tools import chat_tools
from astrai_api.sse import DONE
from astrai_api.stream_errors import openai_stream_error
from astrai_api.template_variables import template_variables
from astrai_engine.events import TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Chat completions, whole or as chunks."""

    answer = ChatCompletion

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def prepare(self, request: ChatCompletionRequest, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request.

        Raises:
            ApiError: an unknown model, or something this server cannot do.
            InvalidRequestError: a combination of values that makes no sense.
        """
        self.context.models.check(request.model, engine)
        check_chat(request)
        self._request = request
        self._chunks = ChunkFormat(
            self._head("chat.completion.chunk"),
            text_fields=lambda text: {"delta": {"content": text}},
            empty_fields={"delta": {}},
            include_usage=request.stream_options.include_usage,
        )
        self.shape = AnswerShape.of_chat(
            engine,
            choice=chat_tools(request),
            output=requested_output(request, "response_format", request.response_format),
            tool_parser=self.context.tool_parser,
            shows_reasoning=request.include_reasoning,
        )
        return GenerationRequest(
            **sampling_fields(request, self.context, engine),
            **self.shape.request_fields(),
            messages=template_messages(request.messages),
            chat_template_kwargs=template_variables(
                request.chat_template_kwargs, reasons=request.reasoning_effort != "none"
            ),
            max_tokens=request.token_limit,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            n=request.n,
        )

    def format_stream_start(self, usage: Usage) -> bytes:  # noqa: ARG002 (counts come last)
        """The role of every choice."""
        content = None if self.shape.choice.is_forced else ""
        role = {"delta": {"role": "assistant", "content": content}}
        return b"".join(self._chunks.fields(index, role) for index in range(self._request.n))

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text of one choice."""
        if not delta.text and not delta.logprobs:
            return b""
        logprobs = self._logprobs(delta.logprobs) if delta.logprobs else None
        return self._chunks.text(delta.index, delta.text, logprobs)

    def format_blocks(
        self, index: int, events: Sequence[BlockEvent], logprobs: Sequence[TokenLogprob]
    ) -> bytes:
        """A chunk for each text, reasoning and piece of a call; the first has all entries."""
        deltas = [delta for event in events if (delta := chat_delta(event))]
        if logprobs:
            shown = self._logprobs(logprobs)
            first = self._chunks.fields(index, {"delta": deltas[0] if deltas else {}}, shown)
            return first + self._format_deltas(index, deltas[1:])
        return self._format_deltas(index, deltas)

    def _format_deltas(self, index: int, deltas: Sequence[dict[str, Any]]) -> bytes:
        return b"".join(self._chunks.fields(index, {"delta": delta}) for delta in deltas)

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The finish reason of every choice, the usage line, and ``[DONE]``."""
        frames = []
        for choice in choices:
            frames.append(self.format_blocks(choice.index, choice.news, ()))
            frames.append(self._chunks.finish(choice.index, FINISH_REASONS[choice.reason]))
        return b"".join([*frames, self._chunks.usage_line(self._usage(choices)), DONE])

    def format_stream_error(self, error: ApiError) -> bytes:
        """The error event, and ``[DONE]``."""
        return openai_stream_error(error)

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The ``chat.completion`` object."""
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": chat_message(choice),
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": FINISH_REASONS[choice.reason],
                }
                for choice in choices
            ],
            "usage": self._usage(choices),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries) if self._request.logprobs else None

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        reasoning = None
        if self.shape.reasoning is not None:
            reasoning = sum(choice.reasoning_tokens for choice in choices)
        return usage_counts(total_usage(choices), reasoning)
