"""Structured output over the OpenAI protocols: what becomes which grammar, and what is refused."""

import json

import pytest

from astrai_api.testing import FakeEngine, FakeInfo, Reply
from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import Grammar

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
HELLO = [{"role": "user", "content": "Hello"}]
ASK = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hello"}, RESPONSES: {"input": "Hello"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
REASONING = FakeInfo(chat_template="<think></think>")


@pytest.fixture
def grammar_of(client, engine):
    """Post a body; gives the grammar that the engine is to enforce."""

    async def post(path, **fields):
        response = await client.post(path, json={**ASK[path], **fields})
        assert response.status_code == 200, response.text
        return engine.requests[-1].grammar

    return post


def named(schema, **fields):
    """A schema as chats and completions have it."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


class TestOwnFields:
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (None, None),
            ({"type": "text"}, None),
            ({"type": "json_object"}, {"type": "object"}),
            ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
            (named(SCHEMA), SCHEMA),
            (named(SCHEMA, strict=True, description="d"), SCHEMA),
            (named(SCHEMA, strict=False), SCHEMA),
            (named({}), {}),
        ],
    )
    async def test_response_format(self, grammar_of, path, given, expected):
        grammar = await grammar_of(path, response_format=given)
        if expected is None:
            assert grammar is None
        else:
            assert grammar == Grammar.json_schema(expected, source="response_format")

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"type": "text"}, None),
            ({"type": "json_object"}, {"type": "object"}),
            ({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, SCHEMA),
        ],
    )
    async def test_text_format(self, grammar_of, given, expected):
        grammar = await grammar_of(RESPONSES, text={"format": given})
        if expected is None:
            assert grammar is None
        else:
            assert grammar == Grammar.json_schema(expected, source="text.format")

    async def test_text_format_is_told_back(self, client):
        given = {"type": "json_schema", "name": "x", "schema": SCHEMA}
        body = {"input": "Hello", "text": {"format": given}}
        assert (await client.post(RESPONSES, json=body)).json()["text"] == {"format": given}


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_json": SCHEMA}, Grammar.json_schema(SCHEMA, source="guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, Grammar.json_schema(SCHEMA, source="guided_json")),
        ({"guided_regex": "[ab]+"}, Grammar.regex("[ab]+", source="guided_regex")),
        ({"guided_choice": ["a", "b"]}, Grammar.choice(["a", "b"], source="guided_choice")),
        ({"guided_grammar": 'start: "a"'}, Grammar.lark('start: "a"', source="guided_grammar")),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None, "json_object": False}},
            Grammar.json_schema(SCHEMA, source="structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Grammar.json_object(source="structured_outputs.json_object"),
        ),
        (
            {"structured_outputs": {"regex": "a"}},
            Grammar.regex("a", source="structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            Grammar.choice(["a"], source="structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            Grammar.lark('start: "a"', source="structured_outputs.grammar"),
        ),
        ({"structured_outputs": {}}, None),
    ],
)
async def test_extensions(grammar_of, path, fields, expected):
    assert await grammar_of(path, **fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
    ],
)
async def test_only_one_at_a_time(client, engine, fields):
    response = await client.post(CHAT, json={**ASK[CHAT], **fields})
    assert response.status_code == 400
    assert "can't be combined" in response.json()["error"]["message"]
    assert engine.requests == []


class TestRefusals:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_schema_that_cannot_be_enforced_is_named_with_its_path(self, connect, stream):
        """B153: what the engine finds is a 400 that names the wire's own field."""
        error = InvalidRequestError(
            "The response_format can't be enforced: #/not is not supported; remove it.",
            param="response_format",
        )
        client = connect(FakeEngine.scripted(Reply(refuse=error)))
        body = {**ASK[CHAT], "response_format": named({"not": {}}), "stream": stream}
        response = await client.post(CHAT, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "response_format"
        assert "#/not" in response.json()["error"]["message"]

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json"),
            ({"guided_json": {"enum": list(range(70_000))}}, "guided_json"),
            ({"guided_regex": "x" * 70_000}, "guided_regex"),
            ({"guided_choice": ["x" * 70_000]}, "guided_choice"),
            ({"guided_grammar": "x" * 70_000}, "guided_grammar"),
        ],
    )
    async def test_too_large(self, client, engine, fields, word):
        response = await client.post(CHAT, json={**ASK[CHAT], **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == word
        assert engine.requests == []

    async def test_too_deep(self, client):
        schema = {}
        for _ in range(100):
            schema = {"items": schema}
        response = await client.post(CHAT, json={**ASK[CHAT], "guided_json": schema})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "guided_json"

    async def test_json_text_too_deep_for_a_parser(self, client):
        text = "[" * 60_000 + "]" * 60_000
        response = await client.post(CHAT, json={**ASK[CHAT], "guided_json": text})
        assert response.status_code == 400


class TestWithTools:
    async def test_a_forced_call_has_no_text_to_hold(self, grammar_of):
        fields = {"tools": [TOOL], "tool_choice": "required"}
        alone = await grammar_of(CHAT, **fields)
        assert await grammar_of(CHAT, **fields, response_format=named(SCHEMA)) == alone

    async def test_free_to_call_or_to_answer_as_asked(self, grammar_of):
        grammar = await grammar_of(CHAT, tools=[TOOL], response_format=named({"type": "null"}))
        assert json.loads(grammar.text) == {"type": "null"}
        assert '"f' in grammar.otherwise.text.replace("\\", "")

    async def test_no_calls_leave_the_text(self, grammar_of):
        given = {"response_format": named(SCHEMA)}
        grammar = await grammar_of(CHAT, tools=[TOOL], tool_choice="none", **given)
        assert grammar == await grammar_of(CHAT, **given)


class TestWithReasoning:
    async def test_reasoning_may_come_first(self, connect):
        engine = FakeEngine(info=REASONING)
        body = {**ASK[CHAT], "response_format": named(SCHEMA)}
        await connect(engine).post(CHAT, json=body)
        assert engine.requests[0].grammar.after.end == "</think>"

    async def test_completions_have_none(self, connect):
        engine = FakeEngine(info=REASONING)
        body = {**ASK[COMPLETIONS], "response_format": named(SCHEMA)}
        await connect(engine).post(COMPLETIONS, json=body)
        assert engine.requests[0].grammar.after is None


async def test_every_prompt_is_held_to_it(client, engine):
    body = {"prompt": ["a", "b"], "guided_regex": "x"}
    await client.post(COMPLETIONS, json=body)
    assert {request.grammar for request in engine.requests} == {
        Grammar.regex("x", source="guided_regex")
    }
