"""Routes of the server itself: health, readiness, statistics, models."""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, error_response
from astrai_api.lifecycle import HostState
from astrai_api.serving import Serving, State
from astrai_api.sse import encode_json

router = APIRouter()

_CREATED = int(time.time())


def _json(body: Any) -> Response:
    return Response(encode_json(body), media_type="application/json")


@router.get("/health", response_class=Response)
@router.get("/ready", response_class=Response)
async def health(request: Request, state: State) -> Response:
    """200 when requests are served; else 503, also for load balancers."""
    now = state.host.state
    loaded = now in (HostState.READY, HostState.DRAINING)
    try:
        state.host.engine()
    except ApiError as error:
        return error_response(error, request.scope, status=now.value, model_loaded=loaded)
    return _json({"status": "ok", "model_loaded": True})


@router.get("/stats", response_class=Response)
async def stats(state: State) -> Response:
    """The scheduler's counters."""
    return _json(dict(state.host.engine().get_stats()))


@router.get("/v1/models", response_class=Response)
async def models(serving: Serving) -> Response:
    """All served names, in a shape that both SDK families read."""
    names = serving.context.models.names(serving.engine)
    data = [_model(name, serving.engine) for name in names]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return _json({"object": "list", "data": data, **page})


@router.get("/v1/models/{name:path}", response_class=Response)
async def model(name: str, serving: Serving) -> Response:
    """One served name."""
    serving.context.models.check_listed(name, serving.engine)
    return _json(_model(name, serving.engine))


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
