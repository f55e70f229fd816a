"""OpenAI- and Anthropic-compatible HTTP server for the AstrAI engine.

``uvicorn astrai_api:app`` serves the model named by the environment; ``create_app`` is the
factory for programs that bring their own engine or settings. Importing this package does
nothing else: names are resolved on first use, and torch is imported only when an engine loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from astrai_api.application import create_app
    from astrai_api.protocol import ProtocolHandler, ResponseBuilder
    from astrai_api.settings import Settings

    app: ASGIApp

__all__ = ["ProtocolHandler", "ResponseBuilder", "Settings", "app", "create_app"]

_HOMES = {
    "ProtocolHandler": "astrai_api.protocol",
    "ResponseBuilder": "astrai_api.protocol",
    "Settings": "astrai_api.settings",
    "create_app": "astrai_api.application",
}


def __getattr__(name: str) -> Any:
    if name == "app":
        value: Any = import_module("astrai_api.application").default_app()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
