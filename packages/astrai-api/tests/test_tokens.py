"""Tokenising over HTTP."""

import pytest

from astrai_api.testing import FakeEngine, FakeInfo

CHAT = [{"role": "user", "content": "two words"}]


async def tokenize(client, **fields):
    return await client.post("/tokenize", json=fields)


async def test_a_text(client, engine):
    body = (await tokenize(client, prompt="one two")).json()
    tokens = engine.tokenizer.encode("one two", add_special_tokens=True)
    assert body == {"count": 2, "max_model_len": 4096, "tokens": tokens, "token_strs": None}


async def test_token_texts(client):
    body = (await tokenize(client, prompt="one two", return_token_strs=True)).json()
    assert body["token_strs"] == ["one", " two"]


async def test_pieces(client):
    body = (await tokenize(client, content="one two", with_pieces=True)).json()
    assert [token["piece"] for token in body["tokens"]] == ["one", " two"]
    assert all(isinstance(token["id"], int) for token in body["tokens"])


async def test_a_chat_is_what_would_run(client, engine):
    body = (await tokenize(client, messages=CHAT)).json()
    response = await client.post("/v1/chat/completions", json={"messages": CHAT})
    assert body["count"] == response.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "special"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"content": "a"}, False),
        ({"content": "a", "add_special": True}, True),
        ({"content": "a", "add_special_tokens": True}, True),
    ],
)
async def test_special_tokens(client, engine, monkeypatch, fields, special):
    asked = []
    monkeypatch.setattr(
        engine.tokenizer, "encode", lambda text, *, add_special_tokens: asked.append(special) or []
    )
    assert (await tokenize(client, **fields)).status_code == 200
    assert asked == [special]


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "content": "a"}, {"prompt": ["a"]}])
async def test_one_text_is_needed(client, fields):
    assert (await tokenize(client, **fields)).status_code == 422


async def test_prompts_this_server_does_not_make(client, engine):
    response = await tokenize(client, messages=CHAT, add_generation_prompt=False)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "add_generation_prompt"
    answered = [*CHAT, {"role": "assistant", "content": "yes"}]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    assert (await tokenize(client, messages=answered, **fields)).status_code == 200


async def test_refused_prompts(connect):
    client = connect(FakeEngine(info=FakeInfo(max_seq_len=3)))
    assert (await tokenize(client, messages=CHAT)).status_code == 400
    assert (await tokenize(client, messages=[])).status_code == 400


async def test_there_and_back(client):
    text = "naïve 你好 🙂\u2028 end"
    tokens = (await tokenize(client, prompt=text)).json()["tokens"]
    body = (await client.post("/detokenize", json={"tokens": tokens})).json()
    assert body == {"prompt": text, "content": text}


async def test_no_tokens_are_no_text(client):
    assert (await client.post("/detokenize", json={"tokens": []})).json()["prompt"] == ""


@pytest.mark.parametrize("token", [-1, 65536, 10**30])
async def test_outside_the_vocabulary(client, token):
    response = await client.post("/detokenize", json={"tokens": [token]})
    assert response.status_code == 400
    assert str(token) in response.json()["error"]["message"]


@pytest.mark.parametrize("tokens", [None, "a", [1.5], ["1"], [True]])
async def test_no_ids(client, tokens):
    assert (await client.post("/detokenize", json={"tokens": tokens})).status_code == 422


async def test_keys_are_needed(connect):
    client = connect(api_key=("k",))
    assert (await tokenize(client, prompt="a")).status_code == 401
    assert (await client.post("/detokenize", json={"tokens": []})).status_code == 401
