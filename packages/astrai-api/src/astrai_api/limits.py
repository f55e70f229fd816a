"""Bounds on what a request may bring: header bytes and body bytes."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.errors import ApiError

MAX_HEADER_BYTES = 32 * 1024


class LimitsMiddleware:
    """Refuses headers over 32 KiB with 431 and bodies over ``max_body_bytes`` with 413.

    A body that declares its length is refused before any of it is read; one that does not, as
    soon as it has sent too much.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through while it stays within its bounds."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise ApiError(431, f"The request headers are larger than {MAX_HEADER_BYTES} bytes.")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._max_body_bytes:
            raise self._too_large()
        received = 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        await self._app(scope, counted_receive, send)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The request body is larger than this server's limit of {self._max_body_bytes} bytes.",
            code="request_too_large",
        )
