"""Routes of the OpenAI protocol."""

from astrai_api.openai.builder import OpenAIResponseBuilder
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.protocol import protocol_router

router = protocol_router("/v1/chat/completions", ChatCompletionRequest, OpenAIResponseBuilder)
