"""The application factory."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from astrai_api import anthropic, openai, system, tokens
from astrai_api.auth import AuthMiddleware
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, ErrorBoundary, answer_exception
from astrai_api.lifecycle import EngineHost, EngineLoader, load_engine
from astrai_api.limits import LimitsMiddleware
from astrai_api.logs import configure_logging
from astrai_api.paths import PathMiddleware
from astrai_api.request_id import RequestIdMiddleware
from astrai_api.served_models import ServedModels
from astrai_api.serving import ServingState
from astrai_api.settings import Settings, load_settings, quiet_threads
from astrai_api.startup import LifespanErrors, RefuseToStart
from astrai_engine.errors import AstraiError, ConfigurationError

ROUTERS = (openai.router, anthropic.router, tokens.router, system.router)
"""What the server serves; a protocol registers by joining this line."""


def create_app(
    engine: EngineClient | None = None,
    settings: Settings | None = None,
    *,
    load: EngineLoader = load_engine,
) -> FastAPI:
    """An application that serves one engine.

    Args:
        engine: a loaded engine, which the app owns from here on; None loads one at start-up.
        settings: None reads them from the environment.
        load: makes the engine from the settings when none is given.

    Raises:
        ConfigurationError: a variable of the environment has a bad value.
    """
    settings = settings or load_settings()
    if engine is None:
        quiet_threads()
    host = EngineHost(settings, engine=engine, load=load)
    app = FastAPI(
        title="AstrAI",
        lifespan=host.lifespan,
        middleware=_middleware(settings),
        redirect_slashes=False,
        exception_handlers=dict.fromkeys(
            (ApiError, AstraiError, HTTPException, RequestValidationError), answer_exception
        ),
    )
    app.state.serving = ServingState(settings, ServedModels(settings.served_model_name), host)
    for router in ROUTERS:
        app.include_router(router)
    return app


def default_app() -> ASGIApp:
    """The application of ``uvicorn astrai_api:app``: settings and logging of the process."""
    configure_logging()
    try:
        return create_app()
    except ConfigurationError as error:
        return RefuseToStart(error)


def _middleware(settings: Settings) -> list[Middleware]:
    """From the outside in."""
    stack = [Middleware(LifespanErrors), Middleware(RequestIdMiddleware)]
    if settings.cors_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "request-id", "retry-after"],
            )
        )
    stack += [
        Middleware(ErrorBoundary),
        Middleware(PathMiddleware),
        Middleware(LimitsMiddleware, max_body_bytes=settings.max_body_bytes),
    ]
    if settings.api_key:
        stack.append(Middleware(AuthMiddleware, keys=settings.api_key))
    return stack
