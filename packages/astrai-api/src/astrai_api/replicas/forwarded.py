"""A request on its way to a replica, and the application's answer to it as it is made."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from astrai_api.request_id import request_id
from astrai_api.tasks import running

_CARRIED = ("type", "asgi", "http_version", "method", "scheme", "query_string", "client", "server")


@dataclass(frozen=True)
class ForwardedRequest:
    """A whole request.

    Attributes:
        scope: of ASGI, see :func:`inner_scope`.
        body: all of it.
        blocks: digests of the beginning of its prompt.
        replica: the only one that may answer it; None leaves the choice.
    """

    scope: Mapping[str, Any]
    body: bytes = b""
    blocks: tuple[bytes, ...] = ()
    replica: str | None = None


def inner_scope(scope: Scope) -> dict[str, Any]:
    """The ASGI scope that an application behind sees, as if clients had come to it.

    It can be sent to another process, its path starts below where the outer application is
    mounted, and it offers the request id that has been chosen.
    """
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and f"{path}/".startswith(f"{root}/"):
        path = path.removeprefix(root) or "/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
    headers.append((b"x-request-id", (request_id(scope) or "").encode("ascii")))
    carried = {name: scope[name] for name in _CARRIED if name in scope}
    return {**carried, "path": path, "raw_path": path.encode(), "root_path": "", "headers": headers}


async def app_answer(
    app: ASGIApp, request: ForwardedRequest
) -> AsyncGenerator[list[Message], None]:
    """Run the application on a request, and give what it sends as soon as it does.

    What it has sent since the last time comes together. Closing the generator early is a client
    that hangs up.

    Raises:
        Exception: what the application raises.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": request.body, "more_body": False})

    async def run() -> None:
        try:
            await app(dict(request.scope), incoming.get, sent.put)
        finally:
            sent.put_nowait(None)

    async with running(run()) as task:
        has_ended = False
        while not has_ended:
            messages = [await sent.get()]
            while not sent.empty():
                messages.append(sent.get_nowait())
            has_ended = messages[-1] is None
            if whole := [message for message in messages if message is not None]:
                yield whole
        await task
