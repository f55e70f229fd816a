"""The official ``openai`` package against a real socket."""

import asyncio

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from astrai_api.testing import DEFAULT_TEXT, FakeEngine, Gate, Reply

ASK = {"model": "astrai", "messages": [{"role": "user", "content": "Tell me a story."}]}


@pytest.fixture
def sdk(serve):
    with openai.OpenAI(base_url=f"{serve()}/v1", api_key="k", max_retries=0) as client:
        yield client


def chunks_of(sdk, **fields):
    with sdk.chat.completions.create(**ASK, **fields, stream=True) as stream:
        return list(stream)


def test_whole_answer_fits_the_strict_model(sdk):
    raw = sdk.chat.completions.with_raw_response.create(**ASK)
    completion = ChatCompletion.model_validate_json(raw.content)
    assert completion.choices[0].message.content == DEFAULT_TEXT
    assert raw.headers["x-request-id"].startswith("req_")


def test_loop_of_every_tutorial(sdk):
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks_of(sdk)]
    assert "".join(pieces) == DEFAULT_TEXT
    assert len(pieces) > 10


def test_chunks_fit_the_strict_model(sdk):
    for chunk in chunks_of(sdk, logprobs=True, top_logprobs=2):
        ChatCompletionChunk.model_validate(chunk.model_dump())


def test_usage_on_request(sdk):
    *chunks, last = chunks_of(sdk, stream_options={"include_usage": True})
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert last.choices == []
    assert last.usage == sdk.chat.completions.create(**ASK).usage


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_stream_helper(sdk, options):
    with sdk.chat.completions.stream(**ASK, **options) as stream:
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert (message.role, message.content) == ("assistant", DEFAULT_TEXT)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 18


def test_text_completions(sdk):
    options = {"model": "astrai", "prompt": ["a b", "c"], "echo": True, "max_tokens": 3}
    raw = sdk.completions.with_raw_response.create(**options)
    completion = Completion.model_validate_json(raw.content)
    assert [choice.text for choice in completion.choices] == ["a bOnce upon a", "cOnce upon a"]
    pieces = ["", ""]
    for chunk in sdk.completions.create(**options, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert pieces == [choice.text for choice in completion.choices]


def test_responses(sdk):
    raw = sdk.responses.with_raw_response.create(model="astrai", input="Tell me a story.")
    response = Response.model_validate_json(raw.content)
    assert response.status == "completed"
    assert response.output_text == DEFAULT_TEXT
    assert response.usage.output_tokens == 18


def test_responses_stream_helper(sdk):
    with sdk.responses.stream(model="astrai", input="Tell me a story.") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == DEFAULT_TEXT
    assert len(deltas) > 10


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["fake-model", "astrai"]
    assert sdk.models.retrieve("astrai").owned_by == "astrai"
    with pytest.raises(openai.NotFoundError, match="nope"):
        sdk.models.retrieve("nope")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"temperature": 99}, openai.UnprocessableEntityError),
        ({"messages": []}, openai.BadRequestError),
        ({"model": "nope"}, openai.NotFoundError),
        ({"max_tokens": 0, "stream": True}, openai.UnprocessableEntityError),
    ],
)
def test_errors_say_why(sdk, fields, error):
    with pytest.raises(error) as caught:
        sdk.chat.completions.create(**{**ASK, **fields})
    assert len(str(caught.value)) > len("Error code: 400 - ")
    assert caught.value.type
    assert caught.value.request_id


def test_keys(serve):
    url = f"{serve(api_key=('right',))}/v1"
    with openai.OpenAI(base_url=url, api_key="right", max_retries=0) as client:
        assert client.models.list().data
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


async def test_many_streams_at_once(serve):
    async with openai.AsyncOpenAI(base_url=f"{serve()}/v1", api_key="k", max_retries=0) as client:

        async def one() -> str:
            stream = await client.chat.completions.create(**ASK, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*(one() for _ in range(16))) == [DEFAULT_TEXT] * 16


async def test_closing_a_stream_aborts_the_request(serve):
    engine = FakeEngine.scripted(Reply("some text", Gate()))
    url = f"{serve(engine)}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await asyncio.wait_for(engine.handles[0].aborted.wait(), 10)


async def test_cancelling_a_whole_answer_aborts_the_request(serve):
    engine = FakeEngine.scripted(Reply("some text", Gate()))
    url = f"{serve(engine)}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        answer = asyncio.ensure_future(client.chat.completions.create(**ASK))
        async with asyncio.timeout(10):
            while not engine.handles:
                await asyncio.sleep(0.001)
        answer.cancel()
        await asyncio.wait_for(engine.handles[0].aborted.wait(), 10)
        await asyncio.gather(answer, return_exceptions=True)
