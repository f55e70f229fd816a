"""The official ``anthropic`` package against a real socket."""

import asyncio

import anthropic
import pytest
from anthropic.types import Message

from astrai_api.testing import DEFAULT_TEXT, FakeEngine, Gate, Reply

ASK = {
    "model": "astrai",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Tell me a story."}],
}


@pytest.fixture
def sdk(serve):
    with anthropic.Anthropic(base_url=serve(), api_key="k", max_retries=0) as client:
        yield client


def test_whole_answer_fits_the_strict_model(sdk):
    raw = sdk.messages.with_raw_response.create(**ASK)
    message = Message.model_validate_json(raw.http_response.content)
    assert message.content[0].text == DEFAULT_TEXT


def test_event_order(sdk):
    with sdk.messages.create(**ASK, stream=True) as stream:
        names = [event.type for event in stream]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stream_helper_equals_the_whole_answer(sdk):
    with sdk.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == DEFAULT_TEXT
        final = stream.get_final_message()
    whole = sdk.messages.create(**ASK)
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 18)
    assert final.usage.input_tokens == whole.usage.input_tokens


def test_stop_sequences(sdk):
    with sdk.messages.stream(**ASK, stop_sequences=["zzz", "fox"]) as stream:
        final = stream.get_final_message()
    assert final.content[0].text == DEFAULT_TEXT.partition("fox")[0]
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "fox")


def test_count_tokens(sdk):
    body = {key: ASK[key] for key in ("model", "messages")}
    counted = sdk.messages.count_tokens(**body, system="Be brief.").input_tokens
    assert counted == sdk.messages.create(**ASK, system="Be brief.").usage.input_tokens


def test_models(sdk):
    assert [model.id for model in sdk.models.list(limit=20)] == ["fake-model", "astrai"]
    model = sdk.models.retrieve("astrai")
    assert (model.type, model.display_name) == ("model", "astrai")


def test_beta_namespace(sdk):
    """B145."""
    assert sdk.beta.messages.create(**ASK, betas=["some-beta"]).type == "message"


def test_echoed_answers_are_accepted(sdk):
    answer = sdk.messages.create(**ASK)
    echoed = [*ASK["messages"], {"role": "assistant", "content": answer.content}, *ASK["messages"]]
    assert sdk.messages.create(**{**ASK, "messages": echoed}).content


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"extra_body": {"temperature": -1}}, anthropic.UnprocessableEntityError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"model": "nope"}, anthropic.NotFoundError),
    ],
)
def test_errors_say_why(sdk, fields, error):
    with pytest.raises(error) as caught:
        sdk.messages.create(**{**ASK, **fields})
    assert caught.value.body["error"]["message"]
    assert caught.value.request_id


def test_keys(serve):
    url = serve(api_key=("right",))
    with anthropic.Anthropic(base_url=url, api_key="right", max_retries=0) as client:
        assert client.messages.create(**ASK).content
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(**ASK)


async def test_closing_a_stream_aborts_the_request(serve):
    engine = FakeEngine.scripted(Reply("some text", Gate()))
    url = serve(engine)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.messages.create(**ASK, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await asyncio.wait_for(engine.handles[0].aborted.wait(), 10)
