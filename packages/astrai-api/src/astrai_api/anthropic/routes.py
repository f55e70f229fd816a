"""Routes of the Anthropic protocol."""

import asyncio
from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from astrai_api.anthropic.answers import TokenCount
from astrai_api.anthropic.builder import AnthropicResponseBuilder
from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.documentation import write_responses
from astrai_api.protocol import protocol_router
from astrai_api.serving import Serving
from astrai_api.sse import json_response
from astrai_api.strict_json import StrictJSONRoute

_COUNT_TOKENS = "/v1/messages/count_tokens"

router = protocol_router("/v1/messages", MessagesRequest, AnthropicResponseBuilder)
_counting = APIRouter(route_class=StrictJSONRoute)


@_counting.post(
    _COUNT_TOKENS,
    response_class=Response,
    responses=write_responses(_COUNT_TOKENS, TokenCount),
)
async def count_tokens(body: MessagesRequest, serving: Serving) -> Response:
    """Tokens of the prompt that the same body would make at ``/v1/messages``."""
    prepared = AnthropicResponseBuilder(serving.context).prepare(body, serving.engine)
    request = replace(prepared, grammar=None)  # it has no part in the prompt
    tokens = await asyncio.to_thread(serving.engine.count_prompt_tokens, request)
    return json_response({"input_tokens": tokens})


router.include_router(_counting)
