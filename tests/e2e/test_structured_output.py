"""Structured output of the official SDKs on the embedded model, which would not keep to it."""

import asyncio
import json
import re

import anthropic
import httpx
import openai
import pydantic
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a person called Bob."}]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
}


class Person(pydantic.BaseModel):
    """Somebody."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int


def check(text):
    """The text is JSON and matches the schema."""
    person = json.loads(text)
    assert set(person) == {"name", "age", "colours"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 150
    assert set(person["colours"]) <= {"red", "blue"}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def chat(client):
    def create(**fields):
        body = {"model": "astrai", "messages": QUESTION, "max_tokens": 80, **fields}
        return client.chat.completions.create(**body)

    return create


def test_schema_in_several_choices(chat):
    answer = chat(response_format=FORMAT, n=4, temperature=1, seed=1)
    for choice in answer.choices:
        check(choice.message.content)
        assert choice.finish_reason == "stop"


def test_schema_streamed(chat):
    stream = chat(response_format=FORMAT, stream=True, temperature=1, seed=2)
    check("".join(chunk.choices[0].delta.content or "" for chunk in stream))


def test_parsed_by_the_sdk(client):
    answer = client.chat.completions.parse(
        model="astrai", messages=QUESTION, response_format=Person, max_tokens=80, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_any_object_is_whole_where_the_limit_is_near(chat):
    """The model would go on and on; the limit closes its text rather than cutting it."""
    question = [{"role": "user", "content": "Tell me a short story about a red fox."}]
    answer = chat(
        messages=question, response_format={"type": "json_object"}, max_tokens=60, temperature=0
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 60


def test_responses(client):
    answer = client.responses.create(
        model="astrai",
        input=QUESTION,
        max_output_tokens=80,
        text={"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}},
    )
    check(answer.output_text)


def test_messages(server):
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        message = client.messages.create(
            model="astrai",
            messages=QUESTION,
            max_tokens=80,
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )
    check(message.content[0].text)
    assert message.stop_reason == "end_turn"


def test_extensions(chat, client):
    answer = chat(extra_body={"guided_choice": ["maybe", "certainly"]})
    assert answer.choices[0].message.content in ("maybe", "certainly")
    answer = chat(extra_body={"guided_regex": "[A-C]{3}-[0-9]{2}"})
    assert re.fullmatch("[A-C]{3}-[0-9]{2}", answer.choices[0].message.content)
    answer = chat(extra_body={"guided_grammar": 'start: "x" ("y" | "z")'})
    assert answer.choices[0].message.content in ("xy", "xz")
    answer = client.completions.create(
        model="astrai", prompt="1, 2,", extra_body={"structured_outputs": {"regex": " [0-9]"}}
    )
    assert re.fullmatch(" [0-9]", answer.choices[0].text)


def test_text_or_a_call(chat):
    """With tools the model may call, the text that is no call is still as asked for."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    message = chat(response_format=FORMAT, tools=[tool], max_tokens=120).choices[0].message
    if not message.tool_calls:
        check(message.content)


UNSUPPORTED = [
    ({"not": {"type": "string"}}, "#/properties/a/not"),
    ({"type": "array", "uniqueItems": True}, "#/properties/a/uniqueItems"),
    ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    ({"type": "string", "pattern": "("}, ""),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("part", "path"), UNSUPPORTED)
def test_what_cannot_be_enforced_is_refused_with_its_path(chat, part, path, stream):
    """B153."""
    schema = {"type": "object", "properties": {"a": part}}
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format=given, stream=stream)
    assert caught.value.param == "response_format"
    assert path in caught.value.message


HOSTILE = {
    "deep": {"guided_json": json.loads('{"items":' * 100 + "{}" + "}" * 100)},
    "many values": {"guided_json": {"enum": list(range(200_000))}},
    "many alternatives": {
        "guided_json": {
            "allOf": [
                {"anyOf": [{"properties": {f"{side}{i}": {"type": "string"}}} for side in "ab"]}
                for i in range(16)
            ]
        }
    },
    "long": {"guided_regex": "a" * 100_000},
    "not Lark": {"guided_grammar": 'root ::= "a" | "b"'},
}


async def test_hostile_grammars_are_refused_and_the_server_lives(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:

        async def status(fields):
            body = {"messages": QUESTION, **fields}
            return (await client.post("/v1/chat/completions", json=body)).status_code

        statuses = await asyncio.gather(*[status(fields) for fields in HOSTILE.values()])
        assert dict(zip(HOSTILE, statuses, strict=True)) == dict.fromkeys(HOSTILE, 400)
        assert await status({"max_tokens": 1}) == 200
