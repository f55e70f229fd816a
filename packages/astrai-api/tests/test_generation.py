"""How responses live and die: first event, keep-alive, hanging up, time limits."""

import asyncio
import json
import time

import pytest

from astrai_api import generation
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.errors import DeadlineExceededError, EngineUnavailableError, GenerationError
from astrai_engine.events import Finished, FinishReason, TokenDelta, Usage

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
MESSAGE = {"messages": [{"role": "user", "content": "Hello"}]}
ASK = {
    CHAT: MESSAGE,
    MESSAGES: MESSAGE,
    COMPLETIONS: {"prompt": "Hello"},
    RESPONSES: {"input": "Hello"},
}
BODY = {}
STREAM = {"stream": True}
FOREVER = 10


@pytest.fixture(params=[CHAT, MESSAGES, COMPLETIONS, RESPONSES])
def path(request):
    return request.param


@pytest.fixture
def call(call):
    """Start a raw call whose body asks the same of every protocol."""

    def start(engine, path, body, **settings):
        return call(engine, path, {**ASK[path], **body}, **settings)

    return start


async def submitted(engine):
    """The handle of the first request, once it is there."""
    while not engine.handles:
        await asyncio.sleep(0)
    return engine.handles[0]


async def test_stream_opens_with_the_first_event(call, path):
    gate = Gate()
    stream = call(FakeEngine.scripted(Reply(gate, "a b")), path, STREAM)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.next(), 0.05)
    gate.open()
    assert (await stream.next())["status"] == 200


async def test_text_arrives_as_it_is_made(call, path):
    gate = Gate()
    stream = call(FakeEngine.scripted(Reply("first", gate, " second")), path, STREAM)
    await stream.next()
    assert "first" in await stream.text()
    assert stream.sent.empty()
    gate.open()
    assert "second" in await stream.text()


async def test_body_ends_after_the_last_event(call, path):
    messages = await call(FakeEngine(), path, STREAM).rest()
    last = b"}\n\n" if path == RESPONSES else b"data: [DONE]\n\n"
    assert messages[-2]["body"].endswith(last)
    assert messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert all(message["more_body"] for message in messages[1:-1])


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_hanging_up_while_waiting_aborts(call, path, body):
    engine = FakeEngine.scripted(Reply(Gate()))
    request = call(engine, path, body)
    handle = await submitted(engine)
    request.hang_up()
    await asyncio.wait_for(handle.aborted.wait(), FOREVER)
    assert await request.rest() == []


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_hanging_up_midway_aborts(call, path, body):
    engine = FakeEngine.scripted(Reply("some text", Gate(), "more"))
    request = call(engine, path, body)
    handle = await submitted(engine)
    if body is STREAM:
        await request.next()
    request.hang_up()
    await asyncio.wait_for(handle.aborted.wait(), FOREVER)
    await asyncio.wait_for(request.task, FOREVER)


async def test_hanging_up_at_once_aborts(call, path):
    engine = FakeEngine.scripted(Reply(Gate()))
    request = call(engine, path, STREAM)
    request.hang_up()
    await asyncio.wait_for(request.task, FOREVER)
    assert all([await asyncio.wait_for(h.aborted.wait(), FOREVER) is None for h in engine.handles])


async def test_hanging_up_while_sending_the_body_is_no_error(call, path, caplog):
    engine = FakeEngine()
    request = call(engine, path, BODY, more_body=True)
    request.hang_up()
    assert await request.rest() == []
    assert engine.handles == []
    assert caplog.records == []


FRAMES_OF_ONE_TEXT = {CHAT: 5, MESSAGES: 7, COMPLETIONS: 4, RESPONSES: 9}


async def test_delta_without_text_shows_nothing(call, path):
    usage = Usage(2, 0, 1)
    engine = FakeEngine.scripted(Reply(TokenDelta("", (1,), usage), TokenDelta("a", (2,), usage)))
    messages = await call(engine, path, STREAM).rest()
    body = b"".join(message["body"] for message in messages[1:])
    assert body.count(b"data: ") == FRAMES_OF_ONE_TEXT[path]


async def test_finished_requests_are_not_aborted(call, path):
    engine = FakeEngine()
    await call(engine, path, STREAM).rest()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.handles[0].aborted.wait(), 0.01)


async def test_no_task_outlives_a_response(call, path):
    before = asyncio.all_tasks()
    engine = FakeEngine.scripted(Reply("a", Gate()), Reply("a b"))
    cut = call(engine, path, STREAM)
    await cut.next()
    cut.hang_up()
    await cut.task
    await call(engine, path, STREAM).rest()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


PINGS = {
    **dict.fromkeys((CHAT, COMPLETIONS, RESPONSES), ": ping\n\n"),
    MESSAGES: 'event: ping\ndata: {"type":"ping"}\n\n',
}
OPENINGS = {
    CHAT: b'"role":"assistant"',
    MESSAGES: b"event: message_start",
    COMPLETIONS: b": ping",
    RESPONSES: b"event: response.created",
}


class TestKeepAlive:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch):
        monkeypatch.setattr(generation, "PING_INTERVAL", 0.02)

    async def test_silence_midway(self, call, path):
        gate = Gate()
        stream = call(FakeEngine.scripted(Reply("a", gate, " b")), path, STREAM)
        await stream.next()
        await stream.next()
        assert await stream.text() == PINGS[path]
        assert await stream.text() == PINGS[path]
        gate.open()
        await stream.rest()

    async def test_silence_before_the_first_token_opens_the_stream(self, call, path, parse_sse):
        gate = Gate()
        engine = FakeEngine.scripted(Reply(gate, "a b", cached_tokens=1))
        stream = call(engine, path, STREAM)
        assert (await stream.next())["status"] == 200
        opening = await stream.text()
        assert opening.endswith(PINGS[path])
        gate.open()
        whole = opening.encode() + b"".join(m["body"] for m in await stream.rest())
        assert whole.startswith(opening.encode())
        assert whole.count(OPENINGS[path]) == 1
        assert parse_sse(whole)

    async def test_failure_after_that_is_an_error_event(self, call, path, parse_sse):
        gate = Gate()
        engine = FakeEngine.scripted(Reply(gate, GenerationError("The sampler failed.")))
        stream = call(engine, path, STREAM)
        await stream.next()
        await stream.next()
        gate.open()
        body = b"".join(message["body"] for message in await stream.rest())
        assert b"The sampler failed." in body
        assert b"finish_reason" not in body

    async def test_whole_answers_get_none(self, call, path):
        gate = Gate()
        request = call(FakeEngine.scripted(Reply(gate, "a b")), path, BODY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request.next(), 0.1)
        gate.open()
        json.loads((await request.rest())[1]["body"])


class TestFailures:
    async def test_deadline_midway_is_an_error_event(self, call, path):
        engine = FakeEngine.scripted(Reply("a b", DeadlineExceededError("Took too long.")))
        body = b"".join(m.get("body", b"") for m in await call(engine, path, STREAM).rest())
        assert b"Took too long." in body
        assert b'finish_reason":"' not in body
        assert b"stop_reason" not in body.partition(b"content_block_start")[2]

    @pytest.mark.parametrize(
        ("reason", "status"), [(FinishReason.ABORTED, 503), (FinishReason.ERROR, 500)]
    )
    @pytest.mark.parametrize("body", [BODY, STREAM])
    async def test_ends_that_are_no_answer(self, call, path, reason, status, body):
        engine = FakeEngine.scripted(Reply(Finished(reason, Usage(2, 0, 0))))
        assert (await call(engine, path, body).rest())[0]["status"] == status

    async def test_engine_lost_midway(self, call, path):
        engine = FakeEngine.scripted(Reply("a", EngineUnavailableError("The engine is lost.")))
        assert b"The engine is lost." in (await call(engine, path, STREAM).rest())[-2]["body"]

    async def test_events_that_end_early(self, call, path, monkeypatch):
        engine = FakeEngine()
        monkeypatch.setattr("astrai_api.testing.FakeHandle.__aiter__", _no_events)
        assert (await call(engine, path, BODY).rest())[0]["status"] == 500

    async def test_bug_in_formatting_midway_is_logged_and_told(self, call, monkeypatch, caplog):
        def broken(*_):
            raise ZeroDivisionError

        monkeypatch.setattr("astrai_api.openai.builder.total_usage", broken)
        messages = await call(FakeEngine(), CHAT, STREAM).rest()
        assert b'"code":"internal_error"' in messages[-2]["body"]
        assert "ZeroDivisionError" in caplog.text


async def _no_events(_):
    for event in ():
        yield event


async def test_request_timeout_becomes_a_deadline(call, path):
    engine = FakeEngine()
    before = time.monotonic()
    await call(engine, path, BODY, request_timeout=100.0).rest()
    assert before + 100 <= engine.requests[0].deadline <= time.monotonic() + 100


async def test_no_timeout_no_deadline(call, path):
    engine = FakeEngine()
    await call(engine, path, BODY).rest()
    assert engine.requests[0].deadline is None
