"""The live feed: what it says, to whom, and when it ends."""

import asyncio
import json

import pytest

from astrai_api.application import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply

CHAT = {"messages": [{"role": "user", "content": "Hello there"}]}
STREAM = {"accept": "text/event-stream"}


async def test_one_look(client):
    response = await client.get("/engine/live")
    assert response.headers["content-type"] == "application/json"
    look = response.json()
    assert look["engine"] == {
        "name": "fake-model", "model": "fake-model", "device": "cpu", "dtype": "float32",
        "backend": "fake", "page_size": 16, "n_tokens": 8192, "max_seq_len": 4096,
        "max_batch_size": 32,
    }  # fmt: skip
    assert look["frame"]["requests"] == []
    assert look["frame"]["page_states"] == [[0, 512]]


async def test_a_key_is_needed(connect):
    client = connect(api_key=("k",))
    assert (await client.get("/engine/live")).status_code == 401
    assert (await client.get("/engine/live", headers={"x-api-key": "k"})).status_code == 200


class Feed:
    """The stream read by hand, event by event."""

    def __init__(self, call):
        self._call = call

    async def events(self):
        lines = (await self._call.text()).splitlines()
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        return list(zip(names, data, strict=True))

    async def frame(self):
        ((name, frame),) = await self.events()
        assert name == "frame"
        return frame


async def open_feed(call, engine):
    started = call(engine, "/engine/live", None, method="GET", headers=STREAM)
    start = await started.next()
    assert start["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    feed = Feed(started)
    (engine_event, first) = await feed.events()
    assert engine_event[0] == "engine"
    assert first[0] == "frame"
    return started, feed


async def test_a_request_is_seen_from_its_beginning_to_its_end(call):
    gate = Gate()
    engine = FakeEngine.scripted(Reply("one", gate, " two"))
    _, feed = await open_feed(call, engine)
    chat = call(engine, "/v1/chat/completions", CHAT)
    frame = await feed.frame()
    (request,) = frame["requests"]
    assert (request["is_running"], request["num_prompt_tokens"]) == (True, 3)
    assert request["page_runs"] == [[0, 1]]
    assert frame["page_states"] == [[2, 1], [0, 511]]
    gate.open()
    await chat.rest()
    frame = await feed.frame()
    assert frame["requests"] == []
    (ended,) = frame["ended"]
    assert (ended["task_id"], ended["reason"]) == (request["task_id"], "stop")
    assert ended["request_id"] == request["request_id"]


async def test_it_stops_watching_when_the_client_goes_away(call):
    engine = FakeEngine()
    started, _ = await open_feed(call, engine)
    started.hang_up()
    assert await started.rest() == []


async def test_it_ends_when_the_last_request_has_ended_in_a_drain(call):
    gate = Gate()
    engine = FakeEngine.scripted(Reply(gate, "late"))
    started, feed = await open_feed(call, engine)
    chat = call(engine, "/v1/chat/completions", CHAT)
    await feed.frame()
    engine.begin_drain()
    assert len((await feed.frame())["requests"]) == 1
    gate.open()
    await chat.rest()
    assert (await feed.frame())["ended"]
    (last,) = await started.rest()
    assert last["more_body"] is False


async def test_a_sign_of_life_while_nothing_happens(call, monkeypatch):
    monkeypatch.setattr("astrai_api.live.PING_INTERVAL", 0.01)
    started, _ = await open_feed(call, FakeEngine())
    assert await started.text() == ": ping\n\n"


class Gone(FakeEngine):
    """An engine that has drained between the check and the watching."""

    async def watch(self):
        return
        yield


@pytest.mark.parametrize("headers", [{}, STREAM])
async def test_no_engine_no_feed(connect, headers):
    lost = FakeEngine(is_healthy=False)
    for engine, code in ((lost, "engine_lost"), (Gone(), "shutting_down")):
        response = await connect(engine).get("/engine/live", headers=headers)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == code


async def test_all_watchers_share_one_encoding():
    app = create_app(engine=FakeEngine(), settings=Settings())
    frame = await anext(FakeEngine().watch())
    encoder = app.state.frame_encoder
    assert encoder.encode(frame) is encoder.encode(frame)
    other = await anext(FakeEngine().watch())
    assert encoder.encode(other) is not encoder.encode(frame)


async def test_two_watch(call):
    engine = FakeEngine()
    feeds = [(await open_feed(call, engine))[1] for _ in range(2)]
    await call(engine, "/v1/chat/completions", CHAT).rest()
    frames = await asyncio.gather(*(feed.frame() for feed in feeds))
    assert [len(frame["requests"]) for frame in frames] == [1, 1]
