"""An id on every answer: the client's own when it is sane, else a new one."""

import re
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SANE = re.compile(r"[\x21-\x7e]{1,128}")


_CURRENT: ContextVar[str | None] = ContextVar("astrai_request_id", default=None)


def current_request_id() -> str | None:
    """The id of the request that is being handled, for log lines; None outside of one."""
    return _CURRENT.get()


def request_id(scope: Scope) -> str | None:
    """The id of a request that has passed :class:`RequestIdMiddleware`."""
    found: str | None = scope.get("state", {}).get("request_id")
    return found


class RequestIdMiddleware:
    """Keeps the id in the scope's state and sends it in the headers both SDK families read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Choose the id, then run the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        offered = Headers(scope=scope).get("x-request-id", "")
        chosen = offered if _SANE.fullmatch(offered) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = chosen
        token = _CURRENT.set(chosen)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = chosen
                headers["request-id"] = chosen
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            _CURRENT.reset(token)
