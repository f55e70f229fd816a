"""Counts the HTTP responses of an app by route and status."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.metrics import ServerMetrics

_NO_ROUTE = "other"
"""Stands for all paths that lead nowhere: they are not ours to put into a label."""


class ResponseCounter:
    """ASGI middleware; a request whose client went away before an answer is not counted."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app and note the status it answers with."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = route_path(scope) or _NO_ROUTE
                self._metrics.responses[path, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counting_send)


def route_path(scope: Scope) -> str | None:
    """The path of the route that a request was sent to, with its parameters as names."""
    path: str | None = getattr(scope.get("route"), "path", None)
    return path
