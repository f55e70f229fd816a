"""Several requests seen as one."""

import asyncio

import pytest

from astrai_api.merged import submit_all
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.errors import GenerationError, QueueFullError
from astrai_engine.events import Failed, Finished, FinishReason, PromptLogprobs
from astrai_engine.request import GenerationRequest


def ask(prompt, **fields):
    return GenerationRequest(prompt=prompt, **fields)


async def test_one_request_is_its_own_handle():
    engine = FakeEngine()
    assert await submit_all(engine, [ask("a")]) is engine.handles[0]


async def test_choices_are_numbered_one_request_after_the_other():
    engine = FakeEngine(default="x")
    handle = await submit_all(engine, [ask("a b", n=2), ask("c", n=2)])
    events = [event async for event in handle]
    ends = [event.index for event in events if isinstance(event, Finished)]
    assert sorted(ends) == [0, 1, 2, 3]
    assert handle.num_prompt_tokens == 3
    assert handle.request_id == engine.handles[0].request_id


async def test_the_first_prompt_tells_how_prompts_end():
    engine = FakeEngine.scripted(Reply("a", prompt_end="<think>\n"), Reply("b"))
    handle = await submit_all(engine, [ask("a"), ask("b")])
    assert handle.prompt_end == "<think>\n"
    assert [h.prompt_end for h in engine.handles] == ["<think>\n", ""]


async def test_prompts_belong_to_their_first_choice():
    requests = [ask(prompt, n=3, prompt_logprobs=0) for prompt in ("a", "b")]
    handle = await submit_all(FakeEngine(), requests)
    found = [event.index async for event in handle if isinstance(event, PromptLogprobs)]
    assert sorted(found) == [0, 3]


async def test_they_run_side_by_side():
    gate = Gate()
    handle = await submit_all(FakeEngine.scripted(Reply(gate, "a"), Reply("b")), [ask("x")] * 2)
    events = aiter(handle)
    assert [(await anext(events)).index, (await anext(events)).index] == [1, 1]
    gate.open()
    assert {event.index async for event in events} == {0}


async def test_a_failure_keeps_its_place():
    engine = FakeEngine.scripted(Reply("a"), Reply(GenerationError("no")))
    events = [event async for event in await submit_all(engine, [ask("x")] * 2)]
    assert [event.index for event in events if isinstance(event, Failed)] == [1]


async def test_a_refusal_aborts_what_was_accepted():
    refusal = QueueFullError("Full.", retry_after=1)
    engine = FakeEngine.scripted(Reply(Gate()), Reply(refuse=refusal))
    with pytest.raises(QueueFullError):
        await submit_all(engine, [ask("x")] * 2)
    assert engine.handles[0].aborted.is_open


async def test_abort_stops_all_and_leaves_no_task():
    before = asyncio.all_tasks()
    engine = FakeEngine.scripted(Reply("a", Gate()), Reply(Gate()))
    handle = await submit_all(engine, [ask("x")] * 2)
    await anext(aiter(handle))
    handle.abort()
    assert all(each.aborted.is_open for each in engine.handles)
    await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
    assert engine.finished[FinishReason.ABORTED] == 2


async def test_an_exception_of_a_handle_is_raised(monkeypatch):
    async def broken(_):
        raise ZeroDivisionError
        yield

    handle = await submit_all(FakeEngine(), [ask("x")] * 2)
    monkeypatch.setattr("astrai_api.testing.FakeHandle.__aiter__", broken)
    with pytest.raises(ZeroDivisionError):
        await anext(aiter(handle))
