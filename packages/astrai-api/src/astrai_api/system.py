"""Routes of the server itself: health, readiness, statistics, metrics, models."""

import time
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from astrai_api.client import EngineClient
from astrai_api.documentation import ErrorAnswer, read_responses, text_responses
from astrai_api.errors import ApiError, error_response
from astrai_api.lifecycle import HostState
from astrai_api.metrics import CONTENT_TYPE
from astrai_api.serving import Serving, State
from astrai_api.sse import json_response

router = APIRouter()

_CREATED = int(time.time())


class Health(BaseModel):
    """Answer of ``GET /health`` while requests are served."""

    status: Literal["ok"]
    model_loaded: Literal[True]


class Unhealthy(ErrorAnswer):
    """Answer of ``GET /health`` while none are."""

    status: Literal["loading", "lost", "draining"]
    model_loaded: bool


class Stats(BaseModel, extra="allow"):
    """Answer of ``GET /stats``: these and more of the engine's counters."""

    total_tasks: int
    total_tokens: int
    active_tasks: int
    waiting_queue: int


class Model(BaseModel):
    """A served name, in the words of both protocols."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelList(BaseModel):
    """All served names."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]
    first_id: str
    last_id: str


_HEALTH: dict[int | str, dict[str, Any]] = {
    **read_responses(Health),
    503: {"description": "Requests are not served; `status` says why.", "model": Unhealthy},
}


@router.get("/health", response_class=Response, responses=_HEALTH)
@router.get("/ready", response_class=Response, responses=_HEALTH)
async def health(request: Request, state: State) -> Response:
    """200 when requests are served; else 503, also for load balancers."""
    now = state.host.state
    loaded = now in (HostState.READY, HostState.DRAINING)
    try:
        state.host.engine()
    except ApiError as error:
        return error_response(error, request.scope, status=now.value, model_loaded=loaded)
    return json_response({"status": "ok", "model_loaded": True})


@router.get("/stats", response_class=Response, responses=read_responses(Stats))
async def stats(state: State) -> Response:
    """The scheduler's counters."""
    return json_response(dict(state.host.engine().get_stats()))


@router.get("/metrics", response_class=Response, responses=text_responses())
async def metrics(state: State) -> Response:
    """Counters, gauges and latencies for Prometheus, also while the server starts or drains."""
    engine = state.host.loaded_engine
    name = "" if engine is None else state.models.names(engine)[0]
    stats = {} if engine is None else engine.get_stats()
    body = state.metrics.page(name, stats, ready=state.host.state is HostState.READY)
    return Response(body, headers={"content-type": CONTENT_TYPE})


@router.get("/v1/models", response_class=Response, responses=read_responses(ModelList))
async def models(serving: Serving) -> Response:
    """All served names, in a shape that both SDK families read."""
    names = serving.context.models.names(serving.engine)
    data = [_model(name, serving.engine) for name in names]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return json_response({"object": "list", "data": data, **page})


@router.get(
    "/v1/models/{name:path}",
    response_class=Response,
    responses=read_responses(Model, may_be_missing=True),
)
async def model(name: str, serving: Serving) -> Response:
    """One served name."""
    serving.context.models.check_listed(name, serving.engine)
    return json_response(_model(name, serving.engine))


def _model(name: str, engine: EngineClient) -> dict[str, Any]:
    context = engine.info.max_seq_len
    return {
        "id": name,
        "object": "model",
        "created": _CREATED,
        "owned_by": "astrai",
        "max_model_len": context,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(_CREATED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }
