"""The application in front of the replicas: it forwards requests, and what comes back as it comes.

All that requests are about is up to the replicas, keys included. The front answers itself where no
replica can: that one is gone, that all are full, that none is there yet. It joins their metrics.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.application import cors_options
from astrai_api.errors import ApiError, ErrorBoundary, error_response
from astrai_api.lifecycle import HostState
from astrai_api.limits import LimitsMiddleware
from astrai_api.metrics import CONTENT_TYPE
from astrai_api.paths import PathMiddleware
from astrai_api.replicas.forwarded import ForwardedRequest, inner_scope
from astrai_api.replicas.metrics_page import merged_page
from astrai_api.replicas.prompt_blocks import prompt_blocks
from astrai_api.replicas.stream_end import stream_error
from astrai_api.request_id import RequestIdMiddleware
from astrai_api.settings import Settings
from astrai_api.tasks import run_until_disconnect

REPLICA_HEADER = "x-astrai-replica"
"""Names the replica that answered; in a request, the only one that may."""


class ReplicaLostError(Exception):
    """The replica that worked on a request is gone."""


class ReplicaPool(Protocol):
    """Replicas, and a way to each of them."""

    def names(self) -> Sequence[str]:
        """Those that can take requests now."""

    def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """What the application of a replica sends, as soon as it does; closing it hangs up.

        It waits for a replica if there is none.

        Raises:
            ReplicaLostError: the replica is gone.
            ApiError: no replica takes the request.
        """


def front_app(pool: ReplicaPool, settings: Settings) -> ASGIApp:
    """The front, with what it has in common with the application of a single engine.

    Args:
        pool: the replicas.
        settings: of the replicas.
    """
    app: ASGIApp = _Front(pool, tells_tenants_apart=len(settings.api_key) > 1)
    app = LimitsMiddleware(app, settings.max_body_bytes)
    app = ErrorBoundary(PathMiddleware(app))
    if settings.cors_origins:
        app = CORSMiddleware(app, **cors_options(settings))
    return RequestIdMiddleware(app)


class _Front:
    """Forwards each request to one replica, and ``/metrics`` to all of them."""

    def __init__(self, pool: ReplicaPool, *, tells_tenants_apart: bool) -> None:
        self._pool = pool
        self._tells_tenants_apart = tells_tenants_apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        request = await self._read(scope, receive)
        path = request.scope["path"]
        if path in ("/health", "/ready") and not self._pool.names():
            await _nobody_ready(scope)(scope, receive, send)
        elif path == "/metrics" and request.replica is None:
            response = await self._metrics(request)
            await response(scope, receive, send)
        else:
            await run_until_disconnect(self._forward(request, send), receive)

    async def _read(self, scope: Scope, receive: Receive) -> ForwardedRequest:
        """The whole request.

        Raises:
            ApiError: it names a replica that is not there.
            ClientDisconnect: the client is gone.
        """
        headers = Headers(scope=scope)
        replica = headers.get(REPLICA_HEADER)
        if replica is not None and replica not in self._pool.names():
            raise ApiError(
                404,
                f"There is no replica {replica!r}; leave out {REPLICA_HEADER} to get any.",
                code="replica_not_found",
            )
        body = await Request(scope, receive).body()
        tenant = ""
        if self._tells_tenants_apart:
            tenant = headers.get("authorization", "") + headers.get("x-api-key", "")
        inner = inner_scope(scope)
        blocks = prompt_blocks(inner["path"], body, tenant=tenant)
        return ForwardedRequest(inner, body, blocks, replica)

    async def _forward(self, request: ForwardedRequest, send: Send) -> None:
        """Send what the replica sends.

        Raises:
            ApiError: it is gone before it answered.
            ReplicaLostError: it is gone in the middle of an answer that can't say so.
        """
        head: Message | None = None
        try:
            async with aclosing(self._pool.answer(request)) as answer:
                async for messages in answer:
                    for message in messages:
                        if message["type"] == "http.response.start":
                            head = message
                        await send(message)
        except ReplicaLostError as lost:
            error = ApiError(
                503,
                "The replica that worked on this request is gone; try again.",
                code="replica_lost",
                retry_after=1,
            )
            if head is None:
                raise error from lost
            if not _is_event_stream(head):
                raise
            end = stream_error(request.scope["path"], error)
            await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _metrics(self, request: ForwardedRequest) -> Response:
        """The metrics of all replicas; what one of them refuses, a wrong key say, as it does.

        One is asked after the other: a pool need not tell calls for the same request apart.
        """
        pages = {}
        for name in self._pool.names():
            answer = await self._collect(replace(request, replica=name))
            if answer is None:
                continue
            if answer.status_code != 200:
                return answer
            pages[name] = bytes(answer.body).decode()
        return Response(merged_page(pages), headers={"content-type": CONTENT_TYPE})

    async def _collect(self, request: ForwardedRequest) -> Response | None:
        """A whole answer; None from a replica that is gone meanwhile."""
        try:
            messages = [each async for several in self._pool.answer(request) for each in several]
        except ReplicaLostError:
            return None
        head, *rest = messages
        response = Response(b"".join(each.get("body", b"") for each in rest), head["status"])
        response.raw_headers = list(head["headers"])
        return response


def _is_event_stream(head: Message) -> bool:
    content_type = Headers(raw=head["headers"]).get("content-type", "")
    return content_type.startswith("text/event-stream")


def _nobody_ready(scope: Scope) -> Response:
    error = ApiError(503, "No replica is ready.", code="engine_not_initialized", retry_after=1)
    return error_response(error, scope, status=HostState.LOADING.value, model_loaded=False)


async def _live(receive: Receive, send: Send) -> None:
    """Nothing has to be started or stopped."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
