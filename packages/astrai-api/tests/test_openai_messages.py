"""What the chat template gets of OpenAI messages, and what is refused."""

import pytest

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "Hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.fixture
def rendered(client, engine):
    """Post messages; gives what the engine got."""

    async def run(*messages, **fields):
        response = await client.post(URL, json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
        return engine.requests[-1].messages

    return run


@pytest.fixture
def refused(client, engine):
    """Post a body; gives the status and the error object."""

    async def run(*messages, **fields):
        response = await client.post(URL, json={"messages": messages, **fields})
        assert not engine.requests
        return response.status_code, response.json()["error"]

    return run


async def test_developer_is_system(rendered):
    messages = await rendered({"role": "developer", "content": "Be brief."}, USER)
    assert messages[0] == {"role": "system", "content": "Be brief."}


async def test_text_parts_are_joined(rendered):
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "b"},
    ]
    assert await rendered({"role": "user", "content": parts}) == [
        {"role": "user", "content": "a\nb"}
    ]


async def test_one_part_equals_plain_text(rendered):
    part = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    assert await rendered({"role": "user", "content": [part]}) == await rendered(USER)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("part", ["image_url", "input_audio", "file", "anything"])
async def test_other_parts_are_refused_by_name(refused, part, stream):
    """B124."""
    status, error = await refused({"role": "user", "content": [{"type": part}]}, stream=stream)
    assert status == 400
    assert repr(part) in error["message"]
    assert error["param"] == "messages[0].content[0].type"


@pytest.mark.parametrize("content", [[], None, "", "text"])
async def test_silence_beside_tool_calls(rendered, content):
    """B125."""
    assistant = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    messages = await rendered(USER, assistant)
    assert messages[1] == {
        "role": "assistant",
        "content": content or "",
        "tool_calls": [CALL],
    }


async def test_tool_conversation_keeps_every_message(rendered):
    """B127."""
    messages = await rendered(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
        USER,
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    result = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "sunny"}
    assert messages[2] == result


async def test_empty_tool_calls_are_none(rendered):
    """B129."""
    assistant = {"role": "assistant", "content": "x", "tool_calls": []}
    assert (await rendered(USER, assistant))[1] == {"role": "assistant", "content": "x"}


async def test_message_echoed_back_by_an_sdk(rendered):
    echoed = {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "annotations": [],
    }
    assert (await rendered(USER, echoed))[1] == {"role": "assistant", "content": ""}


async def test_old_style_function_call(rendered):
    call = {"role": "assistant", "content": None, "function_call": {"name": "f"}}
    messages = await rendered(USER, call, {"role": "function", "name": "f", "content": "1"})
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert messages[2] == {"role": "tool", "content": "1", "name": "f"}


@pytest.mark.parametrize("stream", [False, True])
async def test_no_messages(refused, stream):
    """B140."""
    status, error = await refused(stream=stream)
    assert status == 400
    assert error["param"] == "messages"
    assert error["message"] == "messages: at least one message is required."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0]"),
        ({"role": "user", "content": None}, "messages[0]"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0].tool_calls[0].function"),
        ("hi", "messages[0]"),
    ],
)
async def test_malformed_message(refused, message, param):
    status, error = await refused(message)
    assert status == 422
    assert error["param"] == param


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class TestUnsupported:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
            ({"functions": [{"name": "f"}]}, "functions"),
            ({"function_call": {"name": "f"}}, "function_call"),
            ({"response_format": {"type": "json_schema"}}, "response_format"),
            ({"modalities": ["text", "audio"]}, "modalities"),
            ({"audio": {"voice": "x"}}, "audio"),
            ({"web_search_options": {}}, "web_search_options"),
            ({"guided_decoding_backend": "x"}, "guided_decoding_backend"),
            ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ],
    )
    async def test_is_refused_by_name(self, refused, fields, param):
        status, error = await refused(USER, **fields)
        assert status == 400
        assert error["param"] == param
        assert param in error["message"]

    @pytest.mark.parametrize(
        "fields",
        [
            {"tools": []},
            {"tools": [], "tool_choice": "auto"},
            {"tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": "none"},
            {"parallel_tool_calls": False},
            {"functions": [], "function_call": "auto"},
            {"response_format": {"type": "text"}},
            {"modalities": ["text"], "audio": None, "web_search_options": None},
            {"reasoning_effort": "low", "verbosity": "low", "service_tier": "flex"},
            {"guided_json": None, "prompt_logprobs": 0},
            {"stream_options": {"include_usage": True}},
        ],
    )
    async def test_harmless_is_accepted(self, rendered, fields):
        assert await rendered(USER, **fields) == [USER]
