"""Shared fixtures: an in-memory client, a raw ASGI call, a real server, and an SSE parser."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Message

from astrai_api.answer_parts import AnswerParser, AnswerPart, ToolCallStart
from astrai_api.application import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("ASTRAI_"):
            monkeypatch.delenv(name)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make an in-memory client of an engine (or of an app), with settings as keywords."""
    async with contextlib.AsyncExitStack() as stack:

        def make(engine: FakeEngine | None = None, *, app: ASGIApp | None = None, **settings: Any):
            app = app or create_app(engine=engine or FakeEngine(), settings=Settings(**settings))
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture
def client(connect, engine) -> httpx.AsyncClient:
    return connect(engine)


class AsgiCall:
    """One request driven by hand: read what the app sends as it comes, and hang up at will."""

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: Any,
        *,
        more_body: bool = False,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait(
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": more_body}
        )
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/json"),
                *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
            ],
            "app": app,
        }
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self.sent.put))

    async def next(self) -> Message:
        return await self.sent.get()

    async def text(self) -> str:
        """The body of the next message."""
        return (await self.next())["body"].decode()

    def hang_up(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def rest(self) -> list[Message]:
        """Wait for the end, and everything not read so far."""
        await self.task
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


@pytest.fixture
async def call() -> AsyncIterator[Callable[..., AsgiCall]]:
    """Start a raw call of an engine's app; calls still running at the end are hung up."""
    calls: list[AsgiCall] = []

    def start(
        engine: FakeEngine,
        path: str,
        body: Any,
        *,
        more_body: bool = False,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> AsgiCall:
        app = create_app(engine=engine, settings=Settings(**settings))
        calls.append(AsgiCall(app, path, body, more_body=more_body, method=method, headers=headers))
        return calls[-1]

    yield start
    for each in calls:
        each.hang_up()
    await asyncio.gather(*(each.task for each in calls), return_exceptions=True)


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@contextlib.contextmanager
def _serving(app: ASGIApp) -> Iterator[str]:
    server = _Server(app)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.listening.wait(10)
        yield server.url
    finally:
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve an engine over a real socket; gives the root URL."""
    with contextlib.ExitStack() as stack:

        def start(engine: FakeEngine | None = None, **settings: Any) -> str:
            app = create_app(engine=engine or FakeEngine(), settings=Settings(**settings))
            return stack.enter_context(_serving(app))

        yield start


@pytest.fixture
def serve_app() -> Iterator[Callable[[ASGIApp], str]]:
    """Serve any application over a real socket; gives the root URL."""
    with contextlib.ExitStack() as stack:
        yield lambda app: stack.enter_context(_serving(app))


Frame = tuple[str | None, str]


def _parse_sse(raw: str | bytes) -> list[Frame]:
    """Events of a stream by the WHATWG algorithm: (name or None, data), comments dropped."""
    text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    assert text.endswith("\n\n"), "the last event is not dispatched without a blank line"
    events: list[Frame] = []
    name, data = None, []
    for line in text.removesuffix("\n").split("\n"):
        assert "\r" not in line
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                events.append((name, "\n".join(data)))
            name, data = None, []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        else:
            assert field == "", f"unknown field in {line!r}"
    return events


@pytest.fixture
def parse_sse() -> Callable[[str | bytes], list[Frame]]:
    return _parse_sse


ParseAllWays = Callable[[Callable[[], AnswerParser], str], list[AnswerPart]]


@pytest.fixture(scope="session")
def parse_all_ways() -> ParseAllWays:
    """Gives the joined parts of a text, which must be the same wherever it is cut."""

    def parse(make_parser: Callable[[], AnswerParser], text: str) -> list[AnswerPart]:
        whole = _parsed(make_parser(), [text])
        assert _parsed(make_parser(), list(text)) == whole, "character by character"
        for cut in range(1, len(text)):
            assert _parsed(make_parser(), [text[:cut], text[cut:]]) == whole, f"cut at {cut}"
        return whole

    return parse


def _parsed(parser: AnswerParser, pieces: list[str]) -> list[AnswerPart]:
    """The parts of a text in pieces; those of one kind that follow one another are joined."""
    found = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    joined: list[Any] = []
    for part in found:
        last = joined[-1] if joined else None
        if isinstance(part, ToolCallStart):
            joined.append(part)
            continue
        assert part.text, "an empty part"
        if type(last) is type(part) and getattr(last, "index", 0) == getattr(part, "index", 0):
            joined[-1] = replace(last, text=last.text + part.text)
        else:
            joined.append(part)
    return joined
