"""Responses: ``POST /v1/responses``, the part of it that agents use."""

import itertools
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from astrai_api.answer import Block, BlockEnded, BlockEvent, BlockKind, BlockStarted, BlockText
from astrai_api.answer_shape import AnswerShape
from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.openai.answers import ResponseObject
from astrai_api.openai.logprobs import logprob_entries
from astrai_api.openai.refusals import check_response
from astrai_api.openai.response_items import template_messages
from astrai_api.openai.response_output import (
    NamedEvent,
    Status,
    item_id,
    output_events,
    output_item,
)
from astrai_api.openai.response_schemas import ResponsesRequest
from astrai_api.openai.sampling import DEFAULT_MAX_TOKENS, sampling_fields
from astrai_api.openai.structured_output import requested_output
from astrai_api.openai.tools import response_tools
from astrai_api.sse import HOLE, EventTemplate, encode_event
from astrai_api.template_variables import template_variables
from astrai_engine.events import FinishReason, TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest

_DELTA = "response.output_text.delta"


class ResponsesBuilder(ResponseBuilder[ResponsesRequest]):
    """Responses, whole or as events. Nothing is stored."""

    answer = ResponseObject

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._numbers = itertools.count()
        self._text = Block(BlockKind.TEXT)
        """All there is of a plain answer."""

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
                "item_id": item_id(self._text),
                "output_index": 0,
                "content_index": 0,
                "delta": HOLE,
                "logprobs": HOLE,
            },
            _DELTA,
        )
        self.shape = AnswerShape.of_chat(
            engine,
            choice=response_tools(request),
            output=requested_output(request, "text.format", request.text.get("format")),
            tool_parser=self.context.tool_parser,
        )
        self._generation = GenerationRequest(
            **sampling_fields(request, self.context, engine),
            **self.shape.request_fields(),
            messages=template_messages(request.instructions, request.input),
            chat_template_kwargs=template_variables(
                request.chat_template_kwargs, reasons=request.reasoning.get("effort") != "none"
            ),
            max_tokens=request.max_output_tokens or DEFAULT_MAX_TOKENS,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
        )
        return self._generation

    def format_stream_start(self, usage: Usage) -> bytes:  # noqa: ARG002 (counts come last)
        """The response, and the message of a plain answer, which is empty so far."""
        response = self._response("in_progress", [])
        events: list[NamedEvent] = [
            ("created", {"response": response}),
            ("in_progress", {"response": response}),
        ]
        if self.shape.is_plain:
            events += output_events(BlockStarted(self._text), "in_progress")
        return self._events(events)

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text."""
        if not delta.text and not delta.logprobs:
            return b""
        return self._delta.fill(next(self._numbers), delta.text, logprob_entries(delta.logprobs))

    def format_blocks(
        self,
        index: int,  # noqa: ARG002 (there is one)
        events: Sequence[BlockEvent],
        logprobs: Sequence[TokenLogprob],
    ) -> bytes:
        """Events for each item and its text; the first text of a message has all entries."""
        named: list[NamedEvent] = []
        for event in events:
            named += output_events(event, "completed", logprobs)
            if isinstance(event, BlockText):
                logprobs = ()
        return self._events(named)

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The end of the last item and of the response."""
        choice = choices[0]
        response = self.format_response(choices)
        status = response["status"]
        news = [BlockEnded(self._text)] if choice.answer is None else choice.news
        named = [named for event in news for named in output_events(event, status)]
        return self._events([*named, (status, {"response": response})])

    def format_stream_error(self, error: ApiError) -> bytes:
        """``response.failed``, with a code to branch on."""
        response = self._response("failed", [])
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._events([("failed", {"response": response})])

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The ``response`` object."""
        choice = choices[0]
        is_cut = choice.reason is FinishReason.LENGTH
        status: Status = "incomplete" if is_cut else "completed"
        blocks = self._blocks(choice)
        items = [output_item(block, "completed") for block in blocks[:-1]]
        items += [output_item(block, status) for block in blocks[-1:]]
        response = self._response(status, items)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = _usage(total_usage(choices), choice.reasoning_tokens)
        return response

    def _blocks(self, choice: Choice) -> list[Block]:
        if choice.answer is not None:
            return choice.answer.blocks
        self._text.pieces, self._text.logprobs = choice.pieces, choice.logprobs
        return [self._text]

    def _events(self, events: Iterable[NamedEvent]) -> bytes:
        return b"".join(
            encode_event(
                {"type": f"response.{name}", "sequence_number": next(self._numbers), **fields},
                f"response.{name}",
            )
            for name, fields in events
        )

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
            "temperature": self._generation.temperature,
            "text": {"format": request.text.get("format") or {"type": "text"}},
            "tool_choice": request.tool_choice,
            "tools": [tool.echo() for tool in request.function_tools],
            "top_logprobs": request.top_logprobs,
            "top_p": self._generation.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
