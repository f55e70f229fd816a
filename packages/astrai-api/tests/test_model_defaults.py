"""What a request leaves open is as the model's makers want it."""

import pytest

from astrai_api.testing import FakeEngine, FakeInfo

MODEL = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
PROTOCOL = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
ASK = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
}


async def sampling(connect, path, defaults, **given):
    engine = FakeEngine(info=FakeInfo(sampling_defaults=defaults))
    answer = await connect(engine).post(path, json=ASK[path] | given)
    assert answer.status_code == 200
    return {name: getattr(engine.requests[0], name) for name in MODEL}, answer.json()


@pytest.mark.parametrize("path", ASK)
async def test_a_model_s_values_stand_before_the_protocol_s(connect, path):
    assert (await sampling(connect, path, {}))[0] == PROTOCOL
    assert (await sampling(connect, path, MODEL))[0] == MODEL
    some = {"top_k": 20}
    assert (await sampling(connect, path, some))[0] == PROTOCOL | some


@pytest.mark.parametrize("path", ASK)
async def test_a_request_s_own_values_stand_before_the_model_s(connect, path):
    """One that equals the protocol's default is named as well; a null is not."""
    given = {"temperature": 1.0, "top_k": 3, "top_p": None}
    chosen, _ = await sampling(connect, path, MODEL, **given)
    assert chosen == MODEL | {"temperature": 1.0, "top_k": 3}


async def test_a_response_tells_what_was_used(connect):
    _, answer = await sampling(connect, "/v1/responses", MODEL, top_p=0.5)
    assert (answer["temperature"], answer["top_p"]) == (0.6, 0.5)
