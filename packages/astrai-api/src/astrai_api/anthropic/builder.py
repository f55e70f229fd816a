"""Messages: ``POST /v1/messages``."""

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from astrai_api.anthropic.answers import MessageAnswer
from astrai_api.anthropic.messages import template_messages
from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, anthropic_error, bad_request
from astrai_api.sse import DONE, HOLE, EventTemplate, encode_event
from astrai_api.stops import stop_strings
from astrai_engine.events import Finished, FinishReason, TokenDelta, Usage
from astrai_engine.request import GenerationRequest

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}

_TEXT_DELTA = EventTemplate(
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": HOLE},
    },
    "content_block_delta",
)


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
        return GenerationRequest(
            messages=messages,
            continue_final_message=prefill,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            rep_window=None,
            stop=stop_strings(request.stop_sequences, "stop_sequences"),
            stream=request.stream,
            cache_salt=self.context.cache_salt,
            deadline=self.context.deadline,
            request_id=self.context.request_id,
        )

    def format_stream_start(self, usage: Usage) -> bytes:
        """``message_start`` and the start of the text block."""
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None}
        message["usage"] = _usage(usage, output_tokens=0)
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block=block
        )

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text."""
        if not delta.text:
            return b""
        return _TEXT_DELTA.fill(delta.text)

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The end of the block, the stop reason and the counts, and ``[DONE]``."""
        usage = total_usage(choices)
        return b"".join(
            [
                _event("content_block_stop", index=0),
                _event(
                    "message_delta",
                    delta=_stop(choices[0].end),
                    usage=_usage(usage, usage.completion_tokens),
                ),
                _event("message_stop"),
                DONE,
            ]
        )

    def format_stream_error(self, error: ApiError) -> bytes:
        """The ``error`` event."""
        return _event("error", error=anthropic_error(error))

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The message object."""
        usage = total_usage(choices)
        return {
            **self._message([{"type": "text", "text": choices[0].text}]),
            **_stop(choices[0].end),
            "usage": _usage(usage, usage.completion_tokens),
        }

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
        }


def _event(name: str, **fields: Any) -> bytes:
    return encode_event({"type": name, **fields}, name)


def _stop(end: Finished) -> dict[str, Any]:
    reason = "stop_sequence" if end.stop is not None else _STOP_REASONS[end.reason]
    return {"stop_reason": reason, "stop_sequence": end.stop}


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
    choice = request.tool_choice.get("type") if request.tool_choice else None
    if request.tools and choice != "none":
        raise bad_request(
            "tools are not supported by this server yet; leave them out, or send "
            '"tool_choice": {"type": "none"} to get text.',
            param="tools",
        )
    if choice in ("any", "tool"):
        raise bad_request("tool_choice asks for a tool, but tools has none.", param="tool_choice")
    if request.output_config.get("format"):
        raise bad_request(
            "output_config.format is not supported by this server.", param="output_config"
        )
    if request.mcp_servers:
        raise bad_request("mcp_servers is not supported by this server.", param="mcp_servers")
