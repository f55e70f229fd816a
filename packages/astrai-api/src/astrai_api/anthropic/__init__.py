"""The Anthropic protocol."""

from astrai_api.anthropic.routes import router

__all__ = ["router"]
