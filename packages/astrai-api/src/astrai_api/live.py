"""The live feed of the engine: ``GET /engine/live``, one look or a stream of them.

The engine makes frames only while somebody watches, and each is turned into JSON once, however
many watch.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astrai_api.client import EngineClient
from astrai_api.documentation import live_responses
from astrai_api.errors import ApiError
from astrai_api.generation import PING_INTERVAL
from astrai_api.serving import Serving
from astrai_api.sse import COMMENT_PING, HEADERS, encode_event, json_response
from astrai_api.tasks import run_until_disconnect, running
from astrai_engine.live_frame import LiveFrame

router = APIRouter()

_FRAME = TypeAdapter(LiveFrame)


class LiveEngine(BaseModel):
    """What runs, which does not change."""

    name: str
    model: str
    device: str
    dtype: str
    backend: str
    page_size: int
    n_tokens: int
    max_seq_len: int
    max_batch_size: int


class LiveLook(BaseModel):
    """Answer of ``GET /engine/live`` to whoever accepts no stream."""

    engine: LiveEngine
    frame: LiveFrame


class FrameEncoder:
    """Turns each frame into an event once; all watchers of an app are on one asyncio loop."""

    def __init__(self) -> None:
        self._frame: LiveFrame | None = None
        self._event = b""

    def encode(self, frame: LiveFrame) -> bytes:
        """The ``frame`` event."""
        if frame is not self._frame:
            self._frame = frame
            self._event = b"event: frame\ndata: %s\n\n" % _FRAME.dump_json(frame)
        return self._event


class LiveStream(Response):
    """Frames as server-sent events until the engine stops or the client goes away.

    Args:
        engine: what runs; the first event.
        first: the first frame, which has come.
        frames: those that follow it.
        encoder: of the app.
    """

    def __init__(
        self,
        engine: LiveEngine,
        first: LiveFrame,
        frames: AsyncGenerator[LiveFrame, None],
        encoder: FrameEncoder,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._opening = encode_event(engine.model_dump(), "engine") + encoder.encode(first)
        self._frames = frames
        self._encoder = encoder
        self.init_headers(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the stream; stop watching when it is cut short for any reason."""
        async with aclosing(self._frames):
            await run_until_disconnect(self._respond(send), receive)

    async def _respond(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _write(send, self._opening)
        async with running(_keep_alive(send)):
            async for frame in self._frames:
                await _write(send, self._encoder.encode(frame))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _encoder(request: Request) -> FrameEncoder:
    encoder: FrameEncoder = request.app.state.frame_encoder
    return encoder


@router.get("/engine/live", response_class=Response, responses=live_responses(LiveLook))
async def live(
    request: Request, serving: Serving, encoder: Annotated[FrameEncoder, Depends(_encoder)]
) -> Response:
    """Requests, steps and pages: now, or several times a second for `Accept: text/event-stream`."""
    engine = _facts(serving.engine)
    frames = serving.engine.watch()
    first = await anext(frames, None)
    if first is None:
        raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=1)
    if "text/event-stream" in request.headers.get("accept", ""):
        return LiveStream(engine, first, frames, encoder)
    await frames.aclose()
    frame = _FRAME.dump_python(first, mode="json")
    return json_response({"engine": engine.model_dump(), "frame": frame})


def _facts(engine: EngineClient) -> LiveEngine:
    facts = {
        field: getattr(engine.info, field) for field in LiveEngine.model_fields.keys() - {"name"}
    }
    return LiveEngine(name=engine.name, **facts)


async def _write(send: Send, events: bytes) -> None:
    await send({"type": "http.response.body", "body": events, "more_body": True})


async def _keep_alive(send: Send) -> None:
    """An idle engine has no news; a proxy must not take that for the end."""
    while True:
        await asyncio.sleep(PING_INTERVAL)
        await _write(send, COMMENT_PING)
