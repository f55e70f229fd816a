"""Routes of the OpenAI protocol."""

from fastapi import APIRouter

from astrai_api.openai.builder import OpenAIResponseBuilder
from astrai_api.openai.completion_schemas import CompletionRequest
from astrai_api.openai.completions import CompletionResponseBuilder
from astrai_api.openai.response_schemas import ResponsesRequest
from astrai_api.openai.responses import ResponsesBuilder
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.protocol import protocol_router

router = APIRouter()
for protocol in (
    protocol_router("/v1/chat/completions", ChatCompletionRequest, OpenAIResponseBuilder),
    protocol_router("/v1/completions", CompletionRequest, CompletionResponseBuilder),
    protocol_router("/v1/responses", ResponsesRequest, ResponsesBuilder),
):
    router.include_router(protocol)
