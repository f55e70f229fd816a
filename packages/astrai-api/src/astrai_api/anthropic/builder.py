"""Messages: ``POST /v1/messages``."""

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from astrai_api.answer import BlockEvent
from astrai_api.answer_shape import AnswerShape
from astrai_api.anthropic.answers import MessageAnswer
from astrai_api.anthropic.blocks import block_event, content_block, named_event, text_delta
from astrai_api.anthropic.messages import template_messages
from astrai_api.anthropic.output_format import requested_output
from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.anthropic.tools import message_tools
from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, bad_request
from astrai_api.model_defaults import model_defaults
from astrai_api.sse import DONE, encode_event
from astrai_api.stops import stop_strings
from astrai_api.stream_errors import anthropic_stream_error
from astrai_api.template_variables import template_variables
from astrai_engine.events import FinishReason, TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}


class AnthropicResponseBuilder(ResponseBuilder[MessagesRequest]):
    """Messages, whole or as events."""

    answer = MessageAnswer
    ping: ClassVar[bytes] = encode_event({"type": "ping"}, "ping")

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"msg_{uuid.uuid4().hex}"

    def prepare(self, request: MessagesRequest, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request. A last message of the assistant is continued.

        Raises:
            ApiError: an unknown model, or something this server cannot do.
            InvalidRequestError: there are no messages.
        """
        self.context.models.check(request.model, engine)
        _check_supported(request)
        self._request = request
        messages = template_messages(request.system, request.messages) if request.messages else []
        prefill = bool(messages) and messages[-1]["role"] == "assistant"
        if prefill and not messages[-1]["content"]:
            messages.pop()
            prefill = False
        self.shape = AnswerShape.of_chat(
            engine,
            choice=message_tools(request),
            output=requested_output(request),
            tool_parser=self.context.tool_parser,
        )
        return GenerationRequest(
            **self.shape.request_fields(),
            messages=messages,
            continue_final_message=prefill,
            chat_template_kwargs=template_variables(
                request.chat_template_kwargs, reasons=request.thinking.get("type") != "disabled"
            ),
            **_sampling_fields(request, engine),
            max_tokens=request.max_tokens,
            rep_window=None,
            stop=stop_strings(request.stop_sequences, "stop_sequences"),
            stream=request.stream,
            cache_salt=self.context.cache_salt,
            deadline=self.context.deadline,
            request_id=self.context.request_id,
        )

    def format_stream_start(self, usage: Usage) -> bytes:
        """``message_start``, and the start of the one block of a plain answer."""
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None}
        message["usage"] = _usage(usage, output_tokens=0)
        start = named_event("message_start", message=message)
        if not self.shape.is_plain:
            return start
        block = {"type": "text", "text": ""}
        return start + named_event("content_block_start", index=0, content_block=block)

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text."""
        if not delta.text:
            return b""
        return text_delta(0, delta.text)

    def format_blocks(
        self,
        index: int,  # noqa: ARG002 (there is one)
        events: Sequence[BlockEvent],
        logprobs: Sequence[TokenLogprob],  # noqa: ARG002 (never asked for)
    ) -> bytes:
        """Starts, deltas and ends of content blocks."""
        return b"".join(map(block_event, events))

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The end of the last block, the stop reason and the counts, and ``[DONE]``."""
        choice = choices[0]
        if choice.answer is None:
            end = named_event("content_block_stop", index=0)
        else:
            end = self.format_blocks(0, choice.news, ())
        delta = named_event("message_delta", delta=_stop(choice), usage=self._usage(choices))
        return b"".join([end, delta, named_event("message_stop"), DONE])

    def format_stream_error(self, error: ApiError) -> bytes:
        """The ``error`` event."""
        return anthropic_stream_error(error)

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The message object."""
        choice = choices[0]
        content = [{"type": "text", "text": choice.text}]
        if choice.answer is not None:
            content = [content_block(block) for block in choice.answer.blocks]
        return {**self._message(content), **_stop(choice), "usage": self._usage(choices)}

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        total = total_usage(choices)
        usage: dict[str, Any] = _usage(total, total.completion_tokens)
        if self.shape.reasoning is not None:
            thinking = choices[0].reasoning_tokens
            usage["output_tokens_details"] = {"thinking_tokens": thinking}
        return usage

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
        }


def _sampling_fields(request: MessagesRequest, engine: EngineClient) -> dict[str, Any]:
    fields = {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p}
    return fields | model_defaults(request, engine)


def _stop(choice: Choice) -> dict[str, Any]:
    reason, stop = choice.reason, choice.end.stop
    if reason is FinishReason.STOP and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}


def _usage(usage: Usage, output_tokens: int) -> dict[str, int]:
    """The prompt in three parts that add up to it: computed, written to the cache, read from it.

    Nothing is ever billed as a write, so what was not read counts as input.
    """
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": output_tokens,
    }


def _check_supported(request: MessagesRequest) -> None:
    """Refuse what would change the answer and is not implemented.

    Raises:
        ApiError: 400, naming the parameter.
    """
    if request.max_tokens == 0:
        raise bad_request("max_tokens must be at least 1.", param="max_tokens")
    if request.mcp_servers:
        raise bad_request("mcp_servers is not supported by this server.", param="mcp_servers")
