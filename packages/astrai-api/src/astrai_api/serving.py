"""What every route needs: the loaded engine, and what the HTTP request says besides its body."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from astrai_api.auth import tenant_salt
from astrai_api.builder import RequestContext
from astrai_api.client import EngineClient
from astrai_api.lifecycle import EngineHost
from astrai_api.metrics import ServerMetrics
from astrai_api.request_id import request_id
from astrai_api.served_models import ServedModels
from astrai_api.settings import Settings
from astrai_engine.events import Event


@dataclass(frozen=True)
class ServingState:
    """The parts of an app that its routes share."""

    settings: Settings
    models: ServedModels
    host: EngineHost
    metrics: ServerMetrics


@dataclass(frozen=True)
class RequestServing:
    """What serves one request.

    Attributes:
        engine: loaded and accepting requests.
        context: for the protocol's builder.
    """

    engine: EngineClient
    context: RequestContext


def _serving_state(request: Request) -> ServingState:
    state: ServingState = request.app.state.serving
    return state


def _request_serving(request: Request) -> RequestServing:
    state = _serving_state(request)
    timeout = state.settings.request_timeout
    measure = state.metrics.observer()
    trace = request.scope["state"].get("trace")
    context = RequestContext(
        request_id=request_id(request.scope),
        models=state.models,
        cache_salt=tenant_salt(request.scope),
        deadline=None if timeout is None else time.monotonic() + timeout,
        observe=measure,
        tool_parser=state.settings.tool_parser,
    )
    if trace is not None:
        context = replace(context, planned=trace.planned, observe=_both(measure, trace.observe))
    return RequestServing(state.host.engine(), context)


def _both(
    first: Callable[[Event], None], second: Callable[[Event], None]
) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        first(event)
        second(event)

    return observe


State = Annotated[ServingState, Depends(_serving_state)]
"""Route parameter: the app's parts, also while no engine is loaded."""

Serving = Annotated[RequestServing, Depends(_request_serving)]
"""Route parameter: what serves this request; 503 while there is no engine."""
