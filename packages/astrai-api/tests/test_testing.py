"""The fake engine behaves as a real one does."""

import asyncio

import pytest

from astrai_api.client import EngineClient
from astrai_api.testing import FakeEngine, FakeInfo, Gate, Reply, main
from astrai_engine.errors import (
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    PromptTooLongError,
)
from astrai_engine.events import (
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    TokenDelta,
    Usage,
)
from astrai_engine.request import GenerationRequest


def ask(**fields):
    return GenerationRequest(messages=[{"role": "user", "content": "Hello"}], **fields)


async def events_of(engine, request):
    return [event async for event in await engine.submit_async(request)]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TokenDelta))


def test_it_is_an_engine_to_the_api():
    engine: EngineClient = FakeEngine()
    assert engine.is_healthy


async def test_text_then_its_end():
    events = await events_of(FakeEngine(default="a b"), ask())
    assert text_of(events) == "a b"
    assert events[-1] == Finished(FinishReason.STOP, Usage(2, 0, 3))
    assert [event.usage.completion_tokens for event in events] == [1, 2, 3]


@pytest.mark.parametrize(("limit", "text"), [(1, "a"), (2, "a b")])
async def test_max_tokens(limit, text):
    events = await events_of(FakeEngine(default="a b"), ask(max_tokens=limit))
    assert text_of(events) == text
    assert events[-1] == Finished(FinishReason.LENGTH, Usage(2, 0, limit))


@pytest.mark.parametrize(
    ("stops", "text", "matched", "tokens"),
    [
        (["c"], "aa b", "c", 2),
        (["dd", "b"], "aa ", "b", 2),
        (["a b"], "a", "a b", 2),
        (["aa"], "", "aa", 1),
        (["zz"], "aa bcd", None, 3),
    ],
)
async def test_stop_strings(stops, text, matched, tokens):
    events = await events_of(FakeEngine(default="aa bcd"), ask(stop=stops))
    assert text_of(events) == text
    assert (events[-1].reason, events[-1].stop) == (FinishReason.STOP, matched)
    assert events[-1].usage.completion_tokens == tokens


async def test_replies_come_in_order_then_the_default():
    engine = FakeEngine.scripted(Reply("one"), default=lambda request: f"{request.max_tokens}")
    assert text_of(await events_of(engine, ask())) == "one"
    assert text_of(await events_of(engine, ask(max_tokens=9))) == "9"
    assert [request.max_tokens for request in engine.requests] == [None, 9]


async def test_failure_midway():
    events = await events_of(FakeEngine.scripted(Reply("a", GenerationError("no"))), ask())
    assert isinstance(events[0], TokenDelta)
    assert isinstance(events[1], Failed)
    assert len(events) == 2


async def test_every_choice_ends():
    events = await events_of(FakeEngine(default="a"), ask(n=2))
    assert [(event.index, type(event)) for event in events] == [
        (0, TokenDelta),
        (0, Finished),
        (1, TokenDelta),
        (1, Finished),
    ]


async def test_abort_opens_a_closed_gate():
    handle = await FakeEngine.scripted(Reply("a", Gate(), "b")).submit_async(ask())
    events = aiter(handle)
    await anext(events)
    handle.abort()
    assert (await anext(events)).reason is FinishReason.ABORTED


async def test_shutdown_fails_what_waits():
    engine = FakeEngine.scripted(Reply(Gate()))
    handle = await engine.submit_async(ask())
    first = asyncio.ensure_future(anext(aiter(handle)))
    await asyncio.sleep(0)
    engine.shutdown()
    assert isinstance((await first).error, EngineUnavailableError)


async def test_refusals():
    with pytest.raises(GenerationError):
        await FakeEngine.scripted(Reply(refuse=GenerationError("no"))).submit_async(ask())
    with pytest.raises(PromptTooLongError):
        await FakeEngine(info=FakeInfo(max_seq_len=2)).submit_async(ask())
    draining = FakeEngine()
    draining.begin_drain()
    with pytest.raises(EngineUnavailableError):
        await draining.submit_async(ask())


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        ({"messages": [{"role": "user", "content": "two words"}]}, 3),
        ({"prompt": "two words"}, 2),
        ({"prompt_token_ids": [1, 2, 3, 4]}, 4),
    ],
)
def test_prompt_tokens_are_words(prompt, count):
    assert FakeEngine().count_prompt_tokens(GenerationRequest(**prompt)) == count


async def test_prompt_logprobs_come_first():
    request = GenerationRequest(prompt="a b", prompt_logprobs=2, max_tokens=0)
    prompt, end = await events_of(FakeEngine(), request)
    assert isinstance(prompt, PromptLogprobs)
    first, second = prompt.entries
    assert first is None
    assert (second.token, len(second.top)) == (" b", 2)
    assert end == Finished(FinishReason.LENGTH, Usage(2, 0, 0))


@pytest.mark.parametrize("prompt", [{"prompt": ""}, {"prompt_token_ids": [-1]}])
async def test_prompts_that_cannot_run(prompt):
    with pytest.raises(InvalidRequestError):
        await FakeEngine().submit_async(GenerationRequest(**prompt))


@pytest.mark.parametrize("text", ["", "a", " a  b ", "naïve 你好\u2028 c\n"])
def test_tokens_are_words_with_the_space_around(text):
    tokenizer = FakeEngine().tokenizer
    token_ids = tokenizer.encode(text, add_special_tokens=True)
    assert len(token_ids) == len(text.split())
    assert tokenizer.decode(token_ids) == text


def test_small_ids_are_bytes():
    tokenizer = FakeEngine().tokenizer
    assert tokenizer.decode([0xE4, 0xBD]) == "\ufffd"
    assert (tokenizer.token_text(97), tokenizer.token_bytes(300)) == ("a", b"")


async def test_stats_count_what_ended():
    engine = FakeEngine(default="a b")
    await events_of(engine, ask(n=2, max_tokens=1))
    (await engine.submit_async(ask())).abort()
    stats = engine.get_stats()
    assert (stats["total_tasks"], stats["active_tasks"], stats["total_tokens"]) == (3, 0, 2)
    assert (stats["finished"]["length"], stats["finished"]["aborted"]) == (2, 1)


def test_it_can_be_served(monkeypatch):
    served = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.update(options, app=app))
    main(["--port", "9"])
    assert (served["host"], served["port"]) == ("127.0.0.1", 9)
    assert served["app"].state.serving.host.engine().name == "fake-model"
