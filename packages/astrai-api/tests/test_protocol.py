"""A protocol is one builder; the handler is the same for all."""

import json

import httpx
import pytest

from astrai_api.application import create_app
from astrai_api.builder import RequestContext, ResponseBuilder
from astrai_api.errors import ApiError
from astrai_api.openai.builder import OpenAIResponseBuilder
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.protocol import ProtocolHandler, protocol_router
from astrai_api.served_models import ServedModels
from astrai_api.settings import Settings
from astrai_api.sse import DONE, encode_event
from astrai_api.testing import FakeEngine
from astrai_api.wire import WireModel
from astrai_engine.request import GenerationRequest


class EchoRequest(WireModel):
    say: str
    stream: bool = False


class EchoBuilder(ResponseBuilder[EchoRequest]):
    def prepare(self, request, engine):
        return GenerationRequest(prompt=request.say, stream=request.stream)

    def format_stream_start(self, usage):
        return encode_event({"prompt": usage.prompt_tokens})

    def format_chunk(self, delta):
        return encode_event(delta.text)

    def format_stream_end(self, choices):
        return DONE

    def format_stream_error(self, error):
        return encode_event(error.message)

    def format_response(self, choices):
        return {"text": choices[0].text}


async def test_new_protocol_is_a_builder_and_a_line(parse_sse):
    app = create_app(engine=FakeEngine(default="a b"), settings=Settings())
    app.include_router(protocol_router("/echo", EchoRequest, EchoBuilder))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        whole = await client.post("/echo", json={"say": "x y z"})
        assert whole.json() == {"text": "a b"}
        stream = await client.post("/echo", json={"say": "x y z", "stream": True})
        events = [data for _, data in parse_sse(stream.content)]
        assert events == ['{"prompt":3}', '"a"', '" b"', "[DONE]"]
        assert (await client.post("/echo", json={})).status_code == 422


async def test_handler_alone():
    engine = FakeEngine(default="Hi")
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hello"}])
    response = await ProtocolHandler(request, engine, OpenAIResponseBuilder()).handle()
    sent = []

    async def receive():
        await engine.stopped.wait()

    async def send(message):
        sent.append(message)

    await response({}, receive, send)
    assert json.loads(sent[1]["body"])["choices"][0]["message"]["content"] == "Hi"
    assert int(dict(sent[0]["headers"])[b"content-length"]) == len(sent[1]["body"])


async def test_refusals_come_before_anything_is_sent():
    context = RequestContext(models=ServedModels(("mine",)))
    request = ChatCompletionRequest(model="x", messages=[{"role": "user", "content": "Hello"}])
    handler = ProtocolHandler(request, FakeEngine(), OpenAIResponseBuilder(context))
    with pytest.raises(ApiError) as caught:
        await handler.handle()
    assert caught.value.status == 404
