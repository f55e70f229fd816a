"""The application factory."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from astrai_api import anthropic, live, openai, page, system, tokens
from astrai_api.auth import AuthMiddleware
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, ErrorBoundary, answer_exception
from astrai_api.lifecycle import EngineHost, EngineLoader, load_engine
from astrai_api.limits import LimitsMiddleware
from astrai_api.logs import configure_logging
from astrai_api.metrics import ServerMetrics
from astrai_api.paths import PathMiddleware
from astrai_api.request_id import RequestIdMiddleware
from astrai_api.response_counter import ResponseCounter
from astrai_api.served_models import ServedModels
from astrai_api.serving import ServingState
from astrai_api.settings import Settings, load_settings, quiet_threads
from astrai_api.startup import LifespanErrors, RefuseToStart
from astrai_engine.errors import AstraiError, ConfigurationError

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.sdk.trace import TracerProvider

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[None]]

_NO_TELEMETRY: "TelemetryConfig" = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own, in newer versions: its logs would have text of requests, its spans double ours."""

ROUTERS = (openai.router, anthropic.router, tokens.router, system.router, live.router)
"""What the server serves; a protocol registers by joining this line."""


def create_app(
    engine: EngineClient | None = None,
    settings: Settings | None = None,
    *,
    load: EngineLoader = load_engine,
    tracer_provider: "TracerProvider | None" = None,
) -> FastAPI:
    """An application that serves one engine.

    Args:
        engine: a loaded engine, which the app owns from here on; None loads one at start-up.
        settings: None reads them from the environment.
        load: makes the engine from the settings when none is given.
        tracer_provider: OpenTelemetry's, for traces; None is the one of ``settings.traces``.

    Raises:
        ConfigurationError: a variable of the environment has a bad value, or traces are wanted
            and OpenTelemetry is not installed.
    """
    settings = settings or load_settings()
    if engine is None:
        quiet_threads()
    host = EngineHost(settings, engine=engine, load=load)
    metrics = ServerMetrics()
    tracing: list[Middleware] = []
    lifespan: Lifespan = host.lifespan
    if settings.traces or tracer_provider is not None:
        tracing, lifespan = _traced(lifespan, tracer_provider)
    app = FastAPI(
        title="AstrAI",
        lifespan=lifespan,
        middleware=_middleware(settings, metrics, tracing),
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        exception_handlers=dict.fromkeys(
            (ApiError, AstraiError, HTTPException, RequestValidationError), answer_exception
        ),
    )
    models = ServedModels(settings.served_model_name)
    app.state.serving = ServingState(settings, models, host, metrics)
    app.state.frame_encoder = live.FrameEncoder()
    for router in ROUTERS:
        app.include_router(router)
    if settings.page:
        app.include_router(page.router)
    return app


def default_app() -> ASGIApp:
    """The application of ``uvicorn astrai_api:app``: settings and logging of the process."""
    configure_logging()
    try:
        settings = load_settings()
        configure_logging(settings.log_format)
        return create_app(settings=settings)
    except ConfigurationError as error:
        return RefuseToStart(error)


def _traced(
    lifespan: Lifespan, provider: "TracerProvider | None"
) -> tuple[list[Middleware], Lifespan]:
    """The middleware that makes spans, and the lifespan that exports the last of them."""
    try:
        from astrai_api import tracing  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigurationError(
            "ASTRAI_TRACES needs OpenTelemetry: install astrai-api[otel]."
        ) from error
    provider = provider or tracing.open_provider()
    middleware = Middleware(tracing.TracingMiddleware, provider=provider)
    return [middleware], tracing.flushing(lifespan, provider)


def cors_options(settings: Settings) -> dict[str, Any]:
    """What pages of other origins may do, as options of ``CORSMiddleware``."""
    return {
        "allow_origins": settings.cors_origins,
        "allow_methods": ["*"],
        "allow_headers": ["*"],
        "expose_headers": ["x-request-id", "request-id", "retry-after"],
    }


def _middleware(
    settings: Settings, metrics: ServerMetrics, tracing: list[Middleware]
) -> list[Middleware]:
    """From the outside in."""
    stack = [
        Middleware(LifespanErrors),
        Middleware(RequestIdMiddleware),
        *tracing,
        Middleware(ResponseCounter, metrics=metrics),
    ]
    if settings.cors_origins:
        stack.append(Middleware(CORSMiddleware, **cors_options(settings)))
    stack += [
        Middleware(ErrorBoundary),
        Middleware(PathMiddleware),
        Middleware(LimitsMiddleware, max_body_bytes=settings.max_body_bytes),
    ]
    if settings.api_key:
        public = page.page_files() if settings.page else ()
        stack.append(Middleware(AuthMiddleware, keys=settings.api_key, public=public))
    return stack
