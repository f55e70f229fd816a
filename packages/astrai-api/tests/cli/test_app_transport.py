import asyncio

import httpx
import pytest

from astrai_api.application import create_app
from astrai_api.cli.app_transport import AppTransport
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply

BODY = {"messages": [{"role": "user", "content": "Hello"}]}
PATH = "/v1/chat/completions"


def client_of(app) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AppTransport(app), base_url="http://app")


def client_on(engine) -> httpx.AsyncClient:
    return client_of(create_app(engine=engine, settings=Settings()))


async def test_whole_answers():
    async with client_on(FakeEngine.scripted(Reply("Hi."))) as client:
        response = await client.post(PATH, json=BODY)
        assert response.json()["choices"][0]["message"]["content"] == "Hi."
        assert (await client.get("/v1/models?x=1")).status_code == 200
        assert (await client.get("/nowhere")).status_code == 404


async def test_a_stream_comes_piece_by_piece():
    gate = Gate()
    async with (
        client_on(FakeEngine.scripted(Reply("before", gate, " after"))) as client,
        client.stream("POST", PATH, json={**BODY, "stream": True}) as response,
    ):
        pieces = response.aiter_text()
        text = ""
        while "before" not in text:
            text += await anext(pieces)
        gate.open()
        text = "".join([piece async for piece in pieces])
    assert " after" in text
    assert text.endswith("data: [DONE]\n\n")


async def test_leaving_early_hangs_up():
    engine = FakeEngine.scripted(Reply("before", Gate(), " after"))
    async with client_on(engine) as client:
        async with client.stream("POST", PATH, json={**BODY, "stream": True}) as response:
            await anext(response.aiter_text())
        assert engine.handles[0].aborted.is_open


async def test_many_at_once():
    async with client_on(FakeEngine()) as client:
        answers = await asyncio.gather(*(client.post(PATH, json=BODY) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}


async def test_an_app_that_breaks_is_an_error_here():
    async def broken(scope, receive, send):
        raise ZeroDivisionError

    async def silent(scope, receive, send):
        pass

    async with client_of(broken) as client:
        with pytest.raises(ZeroDivisionError):
            await client.get("/")
    async with client_of(silent) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
