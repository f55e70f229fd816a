"""Lenient paths: a base URL that ends with a slash still works."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")


class PathMiddleware:
    """Collapses repeated slashes and drops a trailing one: ``/v1//models/`` is ``/v1/models``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tidy the path, then run the app."""
        if scope["type"] == "http":
            scope["path"] = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        await self._app(scope, receive, send)
