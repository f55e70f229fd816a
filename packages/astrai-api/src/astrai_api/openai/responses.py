"""Responses: ``POST /v1/responses``, the part of it that agents use."""

import itertools
import time
import uuid
from collections.abc import Sequence
from typing import Any

from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.openai.answers import ResponseObject
from astrai_api.openai.logprobs import logprob_entries
from astrai_api.openai.refusals import check_response
from astrai_api.openai.response_items import template_messages
from astrai_api.openai.response_schemas import ResponsesRequest
from astrai_api.openai.sampling import DEFAULT_MAX_TOKENS, sampling_fields
from astrai_api.sse import HOLE, EventTemplate, encode_event
from astrai_engine.events import FinishReason, TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest

_DELTA = "response.output_text.delta"
_PLACE = {"output_index": 0, "content_index": 0}


class ResponsesBuilder(ResponseBuilder[ResponsesRequest]):
    """Responses of one message, whole or as events. Nothing is stored."""

    answer = ResponseObject

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._numbers = itertools.count()

    def prepare(self, request: ResponsesRequest, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request.

        Raises:
            ApiError: an unknown model, or something this server cannot do.
            InvalidRequestError: there is no input.
        """
        self.context.models.check(request.model, engine)
        check_response(request)
        self._request = request
        self._delta = EventTemplate(
            {
                "type": _DELTA,
                "sequence_number": HOLE,
                "item_id": self._item_id,
                **_PLACE,
                "delta": HOLE,
                "logprobs": HOLE,
            },
            _DELTA,
        )
        return GenerationRequest(
            **sampling_fields(request, self.context),
            messages=template_messages(request.instructions, request.input),
            chat_template_kwargs=request.chat_template_kwargs,
            max_tokens=request.max_output_tokens or DEFAULT_MAX_TOKENS,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
        )

    def format_stream_start(self, usage: Usage) -> bytes:  # noqa: ARG002 (counts come last)
        """The response, its message and the message's text, all of them empty."""
        response = self._response("in_progress", [])
        item = self._item("in_progress", [])
        return b"".join(
            [
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event("response.output_item.added", output_index=0, item=item),
                self._event(
                    "response.content_part.added",
                    item_id=self._item_id,
                    **_PLACE,
                    part=_part("", []),
                ),
            ]
        )

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text."""
        if not delta.text and not delta.logprobs:
            return b""
        return self._delta.fill(next(self._numbers), delta.text, logprob_entries(delta.logprobs))

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The end of the text, of its message and of the response."""
        response = self.format_response(choices)
        item = response["output"][0]
        part = item["content"][0]
        status = response["status"]
        at = {"item_id": self._item_id, **_PLACE}
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        return b"".join(
            [
                self._event("response.output_text.done", **at, **done),
                self._event("response.content_part.done", **at, part=part),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event(f"response.{status}", response=response),
            ]
        )

    def format_stream_error(self, error: ApiError) -> bytes:
        """``response.failed``, with a code to branch on."""
        response = self._response("failed", [])
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=response)

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The ``response`` object."""
        choice = choices[0]
        is_cut = choice.end.reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        item = self._item(status, [_part(choice.text, choice.logprobs)])
        response = self._response(status, [item])
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = _usage(total_usage(choices))
        return response

    def _event(self, name: str, **fields: Any) -> bytes:
        return encode_event({"type": name, "sequence_number": next(self._numbers), **fields}, name)

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": request.model,
            "output": output,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": request.tool_choice,
            "tools": request.function_tools,
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _part(text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": logprob_entries(logprobs),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
