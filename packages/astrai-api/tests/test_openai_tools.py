"""Tools of chats and responses: which requests there are, and what the engine gets."""

import json

import pytest

from astrai_api.testing import FakeEngine, Reply

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NESTED = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in ("weather", "time")
]
FLAT = [{"type": "function", **tool["function"]} for tool in NESTED]
ASK = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "tools": NESTED},
    RESPONSES: {"input": "Hello", "tools": FLAT},
}
NAMED = {
    CHAT: {"type": "function", "function": {"name": "time"}},
    RESPONSES: {"type": "function", "name": "time"},
}


def allowed(path, mode, *names):
    tools = [{**NAMED[path]} for _ in names]
    for tool, name in zip(tools, names, strict=True):
        if path == CHAT:
            tool["function"] = {"name": name}
        else:
            tool["name"] = name
    fields = {"mode": mode, "tools": tools}
    nested = {"allowed_tools": fields} if path == CHAT else fields
    return {"type": "allowed_tools", **nested}


@pytest.fixture(params=[CHAT, RESPONSES])
def path(request):
    return request.param


@pytest.fixture
def ask(connect, engine, path):
    client = connect(engine)

    async def post(**fields):
        response = await client.post(path, json={**ASK[path], **fields})
        return response, engine.requests[-1] if engine.requests else None

    return post


async def test_templates_get_the_tools_as_openai_writes_them(ask):
    _, request = await ask()
    assert request.tools == NESTED
    assert request.grammar is None


async def test_no_tools_are_none(ask):
    """B103: an empty list is as good as none."""
    response, request = await ask(tools=[])
    assert response.status_code == 200
    assert request.tools is None


async def test_choice_none_still_tells_the_model(ask):
    _, request = await ask(tool_choice="none")
    assert request.tools == NESTED
    assert (request.grammar, list(request.visible_special_tokens)) == (None, [])


async def test_required_is_enforced(ask):
    """B147."""
    _, request = await ask(tool_choice="required")
    assert request.grammar is not None
    assert '"weather"' in request.grammar.text.replace("\\", "")
    assert '"time"' in request.grammar.text.replace("\\", "")


async def test_a_named_tool_is_the_only_one(ask, path):
    _, request = await ask(tool_choice=NAMED[path])
    assert "time" in request.grammar.text
    assert "weather" not in request.grammar.text
    assert request.tools == NESTED


async def test_one_call_or_several(ask):
    one = (await ask(tool_choice="required", parallel_tool_calls=False))[1].grammar
    several = (await ask(tool_choice="required"))[1].grammar
    assert one != several


async def test_allowed_tools_may_be_called_and_no_other(ask, path):
    _, request = await ask(tool_choice=allowed(path, "required", "time"))
    assert "weather" not in request.grammar.text
    _, request = await ask(tool_choice=allowed(path, "auto", "time"))
    assert "time" in request.grammar.text
    assert "weather" not in request.grammar.text
    assert "city" not in request.grammar.text  # only strict tools have their schema enforced


async def test_strict_tools_are_enforced_where_the_model_is_free(ask, path):
    strict = [{**tool, "strict": True} for tool in FLAT]
    if path == CHAT:
        strict = [{"type": "function", "function": tool} for tool in strict]
    _, request = await ask(tools=strict)
    assert "city" in request.grammar.text


BAD_CHOICES = [
    "sometimes",
    {"type": "function"},
    {"type": "function", "function": {"name": "nope"}},
    {"type": "function", "name": "nope"},
    {"type": "function", "name": 5},
    {"type": "custom", "custom": {"name": "weather"}},
    {"type": "web_search"},
    {"type": "allowed_tools"},
    {"type": "allowed_tools", "mode": "auto", "tools": []},
    {"type": "allowed_tools", "mode": "sometimes", "tools": [{"name": "time"}]},
    {"type": "allowed_tools", "allowed_tools": 5},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "nope"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": ["time"]},
    {},
]


@pytest.mark.parametrize("choice", BAD_CHOICES)
async def test_a_choice_that_cannot_be_served_is_refused(ask, choice):
    response, request = await ask(tool_choice=choice)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"
    assert request is None


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "weather"])
async def test_bad_names_are_refused(ask, path, name):
    if path == CHAT:
        extra = {"type": "function", "function": {"name": name}}
    else:
        extra = {"type": "function", "name": name}
    response, _ = await ask(tools=[*ASK[path]["tools"], extra])
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tools[2]")


async def test_a_schema_too_deep_is_refused(ask, path):
    schema = {"type": "object"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"name": "deep", "parameters": schema}
    nested = {"function": tool} if path == CHAT else tool
    response, request = await ask(tools=[{"type": "function", **nested}], tool_choice="required")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert request is None


class TestChat:
    @pytest.mark.parametrize(
        ("tool", "param"),
        [
            ({"type": "custom", "custom": {"name": "f"}}, "tools[0].type"),
            ({"type": "function"}, "tools[0].function"),
        ],
    )
    async def test_what_is_no_function_is_refused(self, client, tool, param):
        response = await client.post(CHAT, json={**ASK[CHAT], "tools": [tool]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param

    async def test_a_function_without_parameters_takes_none(self, client, engine):
        tool = {"type": "function", "function": {"name": "now"}}
        await client.post(CHAT, json={**ASK[CHAT], "tools": [tool]})
        assert engine.requests[0].tools == [
            {
                "type": "function",
                "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
            }
        ]


class TestResponses:
    async def test_what_is_no_function_is_left_out(self, client, engine):
        tools = [*FLAT, {"type": "web_search"}, {"type": "custom", "name": "patch", "format": {}}]
        response = await client.post(RESPONSES, json={"input": "Hello", "tools": tools})
        assert engine.requests[0].tools == NESTED
        assert [tool["name"] for tool in response.json()["tools"]] == ["weather", "time"]

    async def test_a_call_is_refused_if_nothing_is_left(self, client):
        body = {"input": "Hello", "tools": [{"type": "web_search"}], "tool_choice": "required"}
        assert (await client.post(RESPONSES, json=body)).status_code == 400


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "pythonic", "mistral"])
async def test_the_operator_may_name_the_format(connect, parser):
    engine = FakeEngine.scripted(Reply("x"))
    client = connect(engine, tool_parser=parser)
    response = await client.post(CHAT, json={**ASK[CHAT], "tool_choice": "required"})
    assert response.status_code == 200
    marks = {
        "hermes": "<tool_call>",
        "llama3_json": "parameters",
        "pythonic": "weather",
        "mistral": "[TOOL_CALLS]",
    }
    assert marks[parser] in json.dumps(engine.requests[0].grammar.text)
