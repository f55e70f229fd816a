"""Tool use, thinking and structured output in messages, whole and streamed."""

import json

import pytest

from astrai_api.answer import Block, BlockKind
from astrai_api.anthropic.blocks import content_block
from astrai_api.sse import encode_json
from astrai_api.testing import FakeEngine, FakeInfo, Reply
from astrai_engine.errors import GenerationError, InvalidRequestError
from astrai_engine.grammar import Grammar

URL = "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": name, "description": "d", "input_schema": SCHEMA} for name in ("add", "weather")]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REASONING = FakeInfo(chat_template="<think></think>")


@pytest.fixture
def ask(connect, parse_sse):
    """Answer a message with a text; gives the whole message, put together again if streamed."""

    async def run(text, *, stream=False, info=None, **fields):
        engine = FakeEngine(**({"info": info} if info else {}))
        engine.replies.append(Reply(text))
        body = {"messages": HELLO, "tools": TOOLS, "stream": stream, **fields}
        response = await connect(engine).post(URL, json=body)
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()
        events = parse_sse(response.content)
        assert events.pop() == (None, "[DONE]")
        return joined([(name, json.loads(data)) for name, data in events])

    return run


def joined(events):
    """A whole message from its events, by the letter of the protocol."""
    message, is_open, pieces = None, False, ""
    for name, data in events:
        assert name == data["type"]
        match name:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                assert not is_open
                assert data["index"] == len(message["content"])
                message["content"].append(data["content_block"])
                is_open, pieces = True, ""
            case "content_block_delta":
                assert is_open
                assert data["index"] == len(message["content"]) - 1
                pieces += add_delta(message["content"][-1], data["delta"])
            case "content_block_stop":
                assert is_open
                is_open = False
                if message["content"][-1]["type"] == "tool_use":
                    assert message["content"][-1]["input"] == {}
                    message["content"][-1]["input"] = json.loads(pieces) if pieces else {}
            case "message_delta":
                assert not is_open
                message |= data["delta"]
                message["usage"] = data["usage"]
    assert events[-1][0] == "message_stop"
    return message


def add_delta(block, delta):
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] += delta["signature"]
        case "input_json_delta":
            return delta["partial_json"]
    return ""


def without_ids(content):
    for block in content:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return content


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
USE_ADD = {"type": "tool_use", "name": "add", "input": {"a": 1, "b": [2, 3]}}
USE_WEATHER = {"type": "tool_use", "name": "weather", "input": {"city": "Paris"}}


@both_ways
class TestToolUse:
    async def test_one(self, ask, stream):
        message = await ask(ADD, stream=stream)
        assert without_ids(message["content"]) == [USE_ADD]
        assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)

    async def test_several_after_text(self, ask, stream):
        message = await ask(f"Let me see.{ADD}\n{WEATHER}", stream=stream)
        ids = [block["id"] for block in message["content"][1:]]
        assert len(set(ids)) == 2
        text = {"type": "text", "text": "Let me see."}
        assert without_ids(message["content"]) == [text, USE_ADD, USE_WEATHER]

    async def test_text_between_and_behind(self, ask, stream):
        message = await ask(f"{ADD} and {WEATHER} done", stream=stream)
        kinds = [block["type"] for block in message["content"]]
        assert kinds == ["tool_use", "text", "tool_use", "text"]

    async def test_one_at_a_time(self, ask, stream):
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        message = await ask(f"{ADD}\n{WEATHER}", stream=stream, tool_choice=choice)
        assert without_ids(message["content"]) == [USE_ADD]

    async def test_choice_none_reads_no_calls(self, ask, stream):
        message = await ask(ADD, stream=stream, tool_choice={"type": "none"})
        assert message["content"] == [{"type": "text", "text": ADD}]
        assert message["stop_reason"] == "end_turn"

    async def test_a_forced_answer_without_a_call_has_no_blocks(self, ask, stream):
        message = await ask(ADD, stream=stream, tool_choice={"type": "any"}, max_tokens=2)
        assert message["content"] == []
        assert message["stop_reason"] == "max_tokens"

    async def test_a_stop_sequence_in_a_call(self, ask, stream):
        message = await ask("Well " + ADD, stream=stream, stop_sequences=["name"])
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "name")


class TestCut:
    async def test_input_is_what_there_is(self, ask):
        """At the limit, arguments that are no whole JSON are no failure."""
        message = await ask(ADD, max_tokens=6)
        (block,) = without_ids(message["content"])
        assert block["input"].items() <= USE_ADD["input"].items()
        assert message["stop_reason"] == "max_tokens"

    async def test_streamed_pieces_are_a_beginning(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply(ADD))
        body = {"messages": HELLO, "tools": TOOLS, "stream": True, "max_tokens": 6}
        response = await connect(engine).post(URL, json=body)
        events = [json.loads(data) for name, data in parse_sse(response.content) if name]
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        joined_pieces = "".join(delta["partial_json"] for delta in deltas)
        assert '{"a": 1, "b": [2, 3]}'.startswith(joined_pieces)

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("", {}),
            ("{", {}),
            ('{"a": 1, "b": [2', {"a": 1, "b": [2]}),
            ('{"a": 1, "b": [2]}', {"a": 1, "b": [2]}),
            ("[1, 2]", {}),
            ("no JSON", {}),
            ('{"a": 1e999}', {"a": 1.7976931348623157e308}),
            ('{"a": -1e999}', {"a": -1.7976931348623157e308}),
            ('{"a": 1e999, "b', {}),
            ('{"a": NaN, "b', {}),
            ('{"a": ' + "[" * 3000, {}),
            ('{"a": ' + "[" * 3000 + "]" * 3000 + "}", {}),
            ('{"a": ' + "9" * 5000 + "}", {}),
        ],
    )
    def test_any_arguments_make_an_object(self, arguments, expected):
        block = content_block(Block(BlockKind.CALL, name="f", pieces=[arguments]))
        assert block["input"] == expected
        encode_json(block)


@both_ways
class TestThinking:
    TEXT = "<think>\nTwo plus two.\n</think>\n\nFour."

    async def test_a_block_of_its_own(self, ask, stream):
        message = await ask(self.TEXT, stream=stream, info=REASONING)
        thinking, text = message["content"]
        assert thinking["thinking"].strip() == "Two plus two."
        assert thinking == {**thinking, "type": "thinking", "signature": ""}
        assert text == {"type": "text", "text": "Four."}

    async def test_before_a_call(self, ask, stream):
        message = await ask(f"<think>Hm.</think>\n\n{ADD}", stream=stream, info=REASONING)
        assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]
        assert message["stop_reason"] == "tool_use"

    async def test_counted(self, ask, stream):
        message = await ask("<think> a b c </think> d", stream=stream, info=REASONING)
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 4}

    async def test_a_model_without_it_has_no_details(self, ask, stream):
        assert "output_tokens_details" not in (await ask("a", stream=stream))["usage"]


class TestStream:
    async def test_a_failure_inside_a_block(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply(ADD[:40], GenerationError("The sampler failed.")))
        body = {"messages": HELLO, "tools": TOOLS, "stream": True}
        response = await connect(engine).post(URL, json=body)
        name, data = parse_sse(response.content)[-1]
        assert (name, json.loads(data)["error"]["message"]) == ("error", "The sampler failed.")


class TestRequests:
    @pytest.fixture
    def request_of(self, client, engine):
        async def run(**fields):
            response = await client.post(URL, json={"messages": HELLO, **fields})
            assert response.status_code == 200, response.text
            return engine.requests[-1]

        return run

    async def test_templates_get_tools_as_openai_writes_them(self, request_of):
        assert (await request_of(tools=TOOLS)).tools == [
            {
                "type": "function",
                "function": {"name": tool["name"], "description": "d", "parameters": SCHEMA},
            }
            for tool in TOOLS
        ]

    @pytest.mark.parametrize(
        ("choice", "names"),
        [
            ({"type": "any"}, {"add", "weather"}),
            ({"type": "tool", "name": "add"}, {"add"}),
        ],
    )
    async def test_calls_are_enforced(self, request_of, choice, names):
        """B147."""
        grammar = (await request_of(tools=TOOLS, tool_choice=choice)).grammar
        assert {name for name in ("add", "weather") if name in grammar.text} == names

    @pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}])
    async def test_the_model_is_free(self, request_of, choice):
        assert (await request_of(tools=TOOLS, tool_choice=choice)).grammar is None

    async def test_a_name_may_be_as_long_as_agents_make_them(self, request_of):
        name = "mcp__" + "x" * 100
        request = await request_of(tools=[{"name": name, "input_schema": SCHEMA}])
        assert request.tools[0]["function"]["name"] == name

    @pytest.mark.parametrize("field", ["output_config", "output_format"])
    async def test_structured_output(self, request_of, field):
        given = {"type": "json_schema", "schema": SCHEMA}
        fields = {field: {"format": given} if field == "output_config" else given}
        source = "output_config.format" if field == "output_config" else field
        grammar = (await request_of(**fields)).grammar
        assert grammar == Grammar.json_schema(SCHEMA, source=source)

    async def test_structured_output_once(self, client):
        given = {"type": "json_schema", "schema": SCHEMA}
        fields = {"output_config": {"format": given}, "output_format": given}
        response = await client.post(URL, json={"messages": HELLO, **fields})
        assert response.status_code == 400

    async def test_a_schema_that_cannot_be_enforced_is_named_with_its_path(self, connect):
        """B153."""
        error = InvalidRequestError("The tools can't be enforced: #/not ...", param="tools")
        client = connect(FakeEngine.scripted(Reply(refuse=error)))
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "any"}}
        response = await client.post(URL, json=body)
        assert response.status_code == 400
        assert "#/not" in response.json()["error"]["message"]

    async def test_counting_tokens_enforces_nothing(self, client):
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "any"}}
        response = await client.post(f"{URL}/count_tokens", json=body)
        assert response.status_code == 200
