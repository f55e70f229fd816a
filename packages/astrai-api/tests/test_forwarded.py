"""A request is carried whole, and its answer comes back as it is made."""

import asyncio
import pickle
from contextlib import aclosing

import pytest

from astrai_api.application import create_app
from astrai_api.replicas.forwarded import ForwardedRequest, app_answer, inner_scope
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply

CHAT = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'


def request(path, body=b"", method="POST", **fields):
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(b"host", b"h"), (b"x-request-id", b"the client's")],
        "query_string": b"a=b",
        "client": ("10.0.0.1", 7),
        "state": {"request_id": "chosen"},
        "app": object(),
        **fields,
    }
    return ForwardedRequest(inner_scope(scope), body)


def app_of(engine):
    return create_app(engine=engine, settings=Settings())


async def test_the_answer_is_the_applications():
    asked = request("/tokenize", b'{"prompt": "x"}')
    batches = [each async for each in app_answer(app_of(FakeEngine()), asked)]
    messages = [message for batch in batches for message in batch]
    assert [message["type"] for message in messages] == [
        "http.response.start",
        "http.response.body",
    ]
    assert messages[0]["status"] == 200
    assert (b"x-request-id", b"chosen") in messages[0]["headers"]
    assert b'"count":1' in messages[1]["body"]


async def test_it_comes_as_it_is_made():
    gate = Gate()
    engine = FakeEngine.scripted(Reply("First", gate, " second"))
    async with aclosing(
        app_answer(app_of(engine), request("/v1/chat/completions", CHAT))
    ) as answer:
        text = b""
        while b"First" not in text:
            text += b"".join(message.get("body", b"") for message in await anext(answer))
        assert b"second" not in text
        gate.open()
        async for batch in answer:
            text += b"".join(message.get("body", b"") for message in batch)
    assert b"second" in text
    assert text.endswith(b"data: [DONE]\n\n")


async def test_closing_it_early_stops_the_request():
    engine = FakeEngine.scripted(Reply("First", Gate(), "never"))
    answer = app_answer(app_of(engine), request("/v1/chat/completions", CHAT))
    await anext(answer)
    assert engine.handles[0].is_open
    await answer.aclose()
    assert not engine.handles[0].is_open


async def test_cancelling_it_stops_the_request():
    engine = FakeEngine.scripted(Reply("First", Gate(), "never"))
    answer = app_answer(app_of(engine), request("/v1/chat/completions", CHAT))

    async def read():
        return [each async for each in answer]

    reader = asyncio.ensure_future(read())
    while not engine.handles:
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not engine.handles[0].is_open


async def test_what_the_application_raises_is_raised():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("midway")

    answer = app_answer(app, request("/"))
    assert [message["status"] for message in await anext(answer)] == [200]
    with pytest.raises(ValueError, match="midway"):
        await anext(answer)


def test_it_can_be_sent_to_another_process():
    sent = pickle.loads(pickle.dumps(request("/v1/models", b"body")))
    assert sent.scope["query_string"] == b"a=b"
    assert sent.scope["client"] == ("10.0.0.1", 7)
    assert sent.body == b"body"


def test_the_request_id_that_was_chosen_is_the_only_one_offered():
    assert [value for name, value in request("/").scope["headers"] if name == b"x-request-id"] == [
        b"chosen"
    ]


@pytest.mark.parametrize(
    ("path", "root_path", "inner"),
    [
        ("/llm/v1/models", "/llm", "/v1/models"),
        ("/llm", "/llm", "/"),
        ("/v1/models", "", "/v1/models"),
        ("/", "/", "/"),
        ("/llmx/v1", "/llm", "/llmx/v1"),
    ],
)
def test_paths_start_below_where_the_front_is_mounted(path, root_path, inner):
    assert request(path, root_path=root_path).scope["path"] == inner
