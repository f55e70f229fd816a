"""Routes of the Anthropic protocol."""

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from astrai_api.anthropic.builder import AnthropicResponseBuilder
from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.protocol import protocol_router
from astrai_api.serving import Serving
from astrai_api.sse import encode_json
from astrai_api.strict_json import StrictJSONRoute

router = protocol_router("/v1/messages", MessagesRequest, AnthropicResponseBuilder)
_counting = APIRouter(route_class=StrictJSONRoute)


@_counting.post("/v1/messages/count_tokens", response_class=Response)
async def count_tokens(body: MessagesRequest, serving: Serving) -> Response:
    """Tokens of the prompt that the same body would make at ``/v1/messages``."""
    request = AnthropicResponseBuilder(serving.context).prepare(body, serving.engine)
    tokens = await asyncio.to_thread(serving.engine.count_prompt_tokens, request)
    return Response(encode_json({"input_tokens": tokens}), media_type="application/json")


router.include_router(_counting)
