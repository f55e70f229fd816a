"""HTTP without a socket: an httpx transport that calls an application and streams its answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message


class AppTransport(httpx.AsyncBaseTransport):
    """Sends requests to an ASGI application in this process.

    httpx's own gives an answer only when it is complete; this one gives it as it is made, and
    closing a response early is a client that hangs up.

    Args:
        app: the application; its lifespan is its owner's business.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Start the request and wait for the head of its answer.

        Raises:
            Exception: what the application raises before it answers.
        """
        call = _Call(await request.aread())
        call.start(self._app, request)
        head = await call.next_message()
        return httpx.Response(head["status"], headers=head["headers"], stream=call)


class _Call(httpx.AsyncByteStream):
    """One request while the application works on it; iterating gives the body of the answer."""

    def __init__(self, body: bytes) -> None:
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def start(self, app: ASGIApp, request: httpx.Request) -> None:
        """Run the application in a task of its own."""
        call = app(_scope(request), self._incoming.get, self._sent.put)
        self._task = asyncio.ensure_future(call)

    async def next_message(self) -> Message:
        """What the application sends next.

        Raises:
            Exception: what it raises instead.
        """
        getter = asyncio.ensure_future(self._sent.get())
        await asyncio.wait((getter, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._sent.empty() or getter.done():
            return await getter
        getter.cancel()
        self._task.result()
        raise httpx.RemoteProtocolError("The application ended without a complete answer.")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next_message()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def aclose(self) -> None:
        """Hang up, and wait until the application has noticed."""
        self._incoming.put_nowait({"type": "http.disconnect"})
        await asyncio.gather(self._task, return_exceptions=True)


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
