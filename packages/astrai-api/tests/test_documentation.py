"""The OpenAPI document says what the routes do."""

import json

import pytest
from pydantic import TypeAdapter

from astrai_api.anthropic.answers import MessageAnswer, TokenCount
from astrai_api.documentation import AnthropicErrorAnswer, ErrorAnswer
from astrai_api.live import LiveLook
from astrai_api.openai.answers import ChatCompletion, Completion, ResponseObject
from astrai_api.system import Health, ModelList, Stats
from astrai_api.tokens import DetokenizedText, Tokens

HELLO = [{"role": "user", "content": "Hello"}]
POSTS = {
    "/v1/chat/completions": (ChatCompletion, {"messages": HELLO, "logprobs": True, "n": 2}),
    "/v1/completions": (Completion, {"prompt": "a b", "echo": True, "logprobs": 2}),
    "/v1/responses": (ResponseObject, {"input": "Hello", "top_logprobs": 2}),
    "/v1/messages": (MessageAnswer, {"messages": HELLO}),
    "/v1/messages/count_tokens": (TokenCount, {"messages": HELLO}),
    "/tokenize": (Tokens, {"prompt": "a b", "return_token_strs": True}),
    "/detokenize": (DetokenizedText, {"tokens": [97]}),
}
GETS = {
    "/health": Health,
    "/ready": Health,
    "/stats": Stats,
    "/v1/models": ModelList,
    "/engine/live": LiveLook,
}


@pytest.fixture
async def document(client):
    return (await client.get("/openapi.json")).json()


def check(model, body):
    """The body is what the model says, nothing more and nothing converted."""
    parsed = TypeAdapter(model).validate_json(body, strict=True)
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == json.loads(body)
    assert not parsed.model_extra or model is Stats


@pytest.mark.parametrize("path", POSTS)
async def test_answers_are_as_documented(client, path):
    model, body = POSTS[path]
    response = await client.post(path, json=body)
    assert response.status_code == 200
    check(model, response.content)
    assert set(response.json()) == set(model.model_fields)


@pytest.mark.parametrize("path", GETS)
async def test_pages_are_as_documented(client, path):
    check(GETS[path], (await client.get(path)).content)


@pytest.mark.parametrize("path", POSTS)
async def test_errors_are_as_documented(client, path):
    model = AnthropicErrorAnswer if path.startswith("/v1/messages") else ErrorAnswer
    for content in (b"{", b'{"model": 5, "tokens": 5}'):
        response = await client.post(path, content=content)
        check(model, response.content)
        assert set(response.json()) == set(model.model_fields)


async def test_every_route_is_in_it(document):
    assert set(document["paths"]) == {*POSTS, *GETS, "/metrics", "/v1/models/{name}"}


@pytest.mark.parametrize("path", POSTS)
async def test_posts(document, path):
    operation = document["paths"][path]["post"]
    assert operation["requestBody"]["required"]
    statuses = {"200", "400", "401", "404", "413", "422", "431", "500", "503"}
    generates = "text/event-stream" in operation["responses"]["200"]["content"]
    assert generates == (path in list(POSTS)[:4])
    assert set(operation["responses"]) == statuses | ({"429"} if generates else set())
    for status, response in operation["responses"].items():
        assert "$ref" in response["content"]["application/json"]["schema"], status


async def test_parameters_have_their_defaults_and_bounds(document):
    schemas = document["components"]["schemas"]
    assert not any(word in json.dumps(schemas) for word in ('"ge"', '"gt"', '"le"'))
    chat = schemas["ChatCompletionRequest"]["properties"]
    assert chat["max_tokens"]["default"] == 2048
    assert chat["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0.0, "maximum": 2.0}
    assert {"type": "null"} in chat["temperature"]["anyOf"]
    assert chat["messages"]["minItems"] == 1
    assert schemas["ChatCompletionRequest"]["required"] == ["messages"]
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
