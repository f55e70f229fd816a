"""The two responses to a generation request: one JSON body, or a stream of events.

Both are sent only when the first event is there, so a failure before it is a proper HTTP error;
both abort the request the moment the client goes away.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astrai_api.answer_shape import AnswerShape
from astrai_api.builder import Choice, ResponseBuilder
from astrai_api.client import RequestHandle
from astrai_api.errors import to_api_error
from astrai_api.sse import HEADERS, encode_json
from astrai_api.tasks import run_until_disconnect, running
from astrai_engine.errors import EngineUnavailableError, GenerationError
from astrai_engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    TokenDelta,
    Usage,
)

logger = logging.getLogger(__name__)

AnswerEvent: TypeAlias = PromptLogprobs | TokenDelta | Finished
"""An event of a generation that goes well."""

PING_INTERVAL = 15.0
"""Seconds of silence after which a stream sends a sign of life."""


class _Choices:
    """The answers of one request, filled event by event."""

    def __init__(self, shape: AnswerShape, prompt_end: str) -> None:
        self._shape = shape
        self._prompt_end = prompt_end
        self._choices: dict[int, Choice] = {}

    def add(self, event: AnswerEvent) -> Choice:
        """Note an event; gives the choice it belongs to."""
        choice = self._choices.get(event.index)
        if choice is None:
            answer = self._shape.new_answer(self._prompt_end)
            choice = self._choices[event.index] = Choice(event.index, answer)
        choice.add(event)
        return choice

    def complete(self) -> list[Choice]:
        """All choices in order.

        Raises:
            GenerationError: the events ended before every choice did.
        """
        choices = sorted(self._choices.values(), key=lambda choice: choice.index)
        if not choices or any(choice.finished is None for choice in choices):
            raise GenerationError("The engine ended the request before it was finished.")
        return choices


def _accept(event: Event) -> AnswerEvent:
    """Pass on the events of an answer, and raise those of a failure."""
    match event:
        case Failed(error=error):
            raise error
        case Finished(reason=FinishReason.ABORTED):
            raise EngineUnavailableError("The server stopped this request; try again.")
        case Finished(reason=FinishReason.ERROR):
            raise GenerationError("The generation failed.")
        case _:
            return event


class _GenerationResponse(Response):
    """An ASGI response that lives as long as its request does."""

    def __init__(self, handle: RequestHandle, builder: ResponseBuilder[Any]) -> None:
        self.status_code = 200
        self.background = None
        self._handle = handle
        self._builder = builder
        self._choices = _Choices(builder.shape, handle.prompt_end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response; abort the request if that is cut short for any reason."""
        try:
            await run_until_disconnect(self._respond(send), receive)
        finally:
            self._handle.abort()

    @abstractmethod
    async def _respond(self, send: Send) -> None:
        """Turn the events of the handle into the response."""


class CollectedGeneration(_GenerationResponse):
    """The whole answer as one JSON body."""

    def __init__(self, handle: RequestHandle, builder: ResponseBuilder[Any]) -> None:
        super().__init__(handle, builder)
        self.init_headers({"content-type": "application/json"})

    async def _respond(self, send: Send) -> None:
        async for event in self._handle:
            self._builder.context.observe(event)
            self._choices.add(_accept(event))
        body = encode_json(self._builder.format_response(self._choices.complete()))
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class StreamedGeneration(_GenerationResponse):
    """The answer as server-sent events.

    The stream opens with the first event, or with the first keep-alive when the prompt takes
    longer than that; a failure before it opens is raised, one after it becomes an error event.
    """

    def __init__(self, handle: RequestHandle, builder: ResponseBuilder[Any]) -> None:
        super().__init__(handle, builder)
        self.init_headers(HEADERS)
        self._opening = asyncio.Lock()
        self._is_open = False
        self._last_sent = 0.0

    async def _respond(self, send: Send) -> None:
        async with running(self._keep_alive(send)):
            await self._write(send, await self._stream(send))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, send: Send) -> bytes:
        """Send everything but the end, which is returned."""
        try:
            async for event in self._handle:
                self._builder.context.observe(event)
                event = _accept(event)
                choice = self._choices.add(event)
                if self._is_open:
                    await self._write(send, self._frames(event, choice))
                else:
                    await self._open(send, partial(self._frames, event, choice), event.usage)
            return self._builder.format_stream_end(self._choices.complete())
        except Exception as failure:
            if not self._is_open:
                raise
            error = to_api_error(failure)
            if error.code == "internal_error":
                logger.exception("Request %s failed midway", self._builder.context.request_id)
            return self._builder.format_stream_error(error)

    def _frames(self, event: AnswerEvent, choice: Choice) -> bytes:
        match event:
            case TokenDelta() if choice.answer is None:
                return self._builder.format_chunk(event)
            case TokenDelta():
                return self._builder.format_blocks(event.index, choice.news, event.logprobs)
            case PromptLogprobs():
                return self._builder.format_prompt(event)
            case Finished():
                return b""

    async def _open(self, send: Send, make_frames: Callable[[], bytes], usage: Usage) -> None:
        """Send the status, what opens the stream, and the first frames behind it.

        Events and the keep-alive may both get here first; only that is worth a lock.
        """
        async with self._opening:
            if self._is_open:
                await self._write(send, make_frames())
                return
            frames = self._builder.format_stream_start(usage) + make_frames()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write(send, frames)
            self._is_open = True

    async def _write(self, send: Send, frames: bytes) -> None:
        if frames:
            await send({"type": "http.response.body", "body": frames, "more_body": True})
            self._last_sent = asyncio.get_running_loop().time()

    async def _keep_alive(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        prompt = Usage(self._handle.num_prompt_tokens, 0, 0)
        while True:
            await asyncio.sleep(self._last_sent + PING_INTERVAL - loop.time())
            if loop.time() - self._last_sent >= PING_INTERVAL:
                await self._open(send, lambda: self._builder.ping, prompt)
