"""The OpenAI protocol."""

from astrai_api.openai.routes import router

__all__ = ["router"]
