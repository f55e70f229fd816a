"""Messages over HTTP: whole answers, streams, content, parameters, counting."""

import json

import pytest

from astrai_api.testing import FakeEngine, Reply
from astrai_engine.errors import GenerationError

URL = "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]


async def post(client, path=URL, **fields):
    return await client.post(path, json={"messages": HELLO, **fields})


@pytest.fixture
def rendered(client, engine):
    """Post messages; gives what the engine got."""

    async def run(*messages, **fields):
        response = await client.post(URL, json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
        return engine.requests[-1].messages

    return run


def texts(*pieces):
    return [{"type": "text", "text": piece} for piece in pieces]


class TestWhole:
    async def test_body(self, connect):
        """B156 B159."""
        engine = FakeEngine.scripted(Reply("Hello there!", cached_tokens=1))
        body = (await post(connect(engine), model="astrai")).json()
        assert body.pop("id").startswith("msg_")
        assert body == {
            "type": "message",
            "role": "assistant",
            "model": "astrai",
            "content": [{"type": "text", "text": "Hello there!"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 1,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 1,
                "output_tokens": 3,
            },
        }

    async def test_max_tokens(self, client):
        body = (await post(client, max_tokens=2)).json()
        assert body["stop_reason"] == "max_tokens"
        assert body["usage"]["output_tokens"] == 2

    async def test_stop_sequence(self, client):
        """B076 B161."""
        body = (await post(client, stop_sequences=["</x>", "time"])).json()
        assert body["content"] == texts("Once upon a ")
        assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "time")

    async def test_query_string_is_ignored(self, client):
        """B145."""
        assert (await post(client, path="/v1/messages?beta=true")).status_code == 200

    async def test_failure_is_an_error(self, connect):
        engine = FakeEngine.scripted(Reply("a", GenerationError("The sampler failed.")))
        response = await post(connect(engine))
        assert response.status_code == 500
        assert response.json()["error"] == {"type": "api_error", "message": "The sampler failed."}


class TestStream:
    async def test_events(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply("Hello there!", cached_tokens=1))
        response = await post(connect(engine), stream=True)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = parse_sse(response.content)
        assert events.pop() == (None, "[DONE]")
        bodies = [json.loads(data) for _, data in events]
        assert [name for name, _ in events] == [body.pop("type") for body in bodies]
        message = bodies[0]["message"]
        assert message.pop("id").startswith("msg_")
        usage = {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1}
        assert message == {
            "type": "message",
            "role": "assistant",
            "model": "astrai",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 0},
        }
        assert [name for name, _ in events][1:] == [
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert bodies[1:] == [
            {"index": 0, "content_block": {"type": "text", "text": ""}},
            {"index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
            {"index": 0, "delta": {"type": "text_delta", "text": " there!"}},
            {"index": 0},
            {
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {**usage, "output_tokens": 3},
            },
            {},
        ]

    async def test_nameless_done_ends_the_stream(self, client):
        response = await post(client, stream=True)
        assert response.text.endswith('data: {"type":"message_stop"}\n\ndata: [DONE]\n\n')

    async def test_stop_sequence(self, client, parse_sse):
        response = await post(client, stream=True, stop_sequences=["time"])
        events = [json.loads(data) for name, data in parse_sse(response.content) if name]
        assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "time"}
        pieces = [event["delta"]["text"] for event in events if "text" in event.get("delta", {})]
        assert "".join(pieces) == "Once upon a "

    async def test_failure_midway_is_an_error_event(self, connect, parse_sse):
        """B091."""
        engine = FakeEngine.scripted(Reply("a b c", GenerationError("The sampler failed.")))
        events = parse_sse((await post(connect(engine), stream=True)).content)
        assert events[-1] == (
            "error",
            '{"type":"error","error":{"type":"api_error","message":"The sampler failed."}}',
        )
        assert "message_stop" not in [name for name, _ in events]

    async def test_failure_before_the_first_token_is_an_http_error(self, connect):
        engine = FakeEngine.scripted(Reply(GenerationError("The sampler failed.")))
        response = await post(connect(engine), stream=True)
        assert response.status_code == 500
        assert response.json()["type"] == "error"


class TestSystem:
    @pytest.mark.parametrize("system", ["Be brief.", texts("Be brief."), texts("", "Be brief.")])
    async def test_forms(self, rendered, system):
        assert await rendered(*HELLO, system=system) == [
            {"role": "system", "content": "Be brief."},
            *HELLO,
        ]

    @pytest.mark.parametrize("system", [None, "", [], texts("")])
    async def test_none(self, rendered, system):
        assert await rendered(*HELLO, system=system) == HELLO

    async def test_blocks_are_joined(self, rendered):
        messages = await rendered(*HELLO, system=texts("a", "b"))
        assert messages[0]["content"] == "a\nb"

    @pytest.mark.parametrize(
        "form",
        [
            lambda line: f"{line}\nYou are an agent.",
            lambda line: f"You are an agent.\n{line}",
            lambda line: texts(line, "You are an agent."),
        ],
    )
    async def test_billing_line_is_dropped(self, rendered, form):
        """B023."""
        line = "x-anthropic-billing-header: cc_version=2.1; cch="
        one = await rendered(*HELLO, system=form(line + "1"))
        assert one == await rendered(*HELLO, system=form(line + "2"))
        assert one[0]["content"].strip() == "You are an agent."

    async def test_other_blocks_are_refused(self, client):
        response = await post(client, system=[{"type": "image"}])
        assert response.status_code == 400
        assert "'image'" in response.json()["error"]["message"]

    async def test_messages_in_the_middle_keep_their_place(self, rendered):
        """B024."""
        turn = [*HELLO, {"role": "system", "content": texts("10 tokens left")}]
        first = await rendered(*turn, system="Be brief.")
        answer = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
        second = await rendered(*turn, *answer, system="Be brief.")
        assert [message["role"] for message in first] == ["system", "user", "system"]
        assert second[: len(first)] == first


class TestContent:
    async def test_blocks_equal_text(self, rendered):
        cached = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
        assert await rendered({"role": "user", "content": cached}) == HELLO

    async def test_empty_text_block_is_accepted(self, rendered):
        """B160."""
        empty = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
        message = {"role": "user", "content": [*texts("Hello"), empty]}
        assert await rendered(message) == HELLO

    async def test_neighbours_of_one_role_become_one(self, rendered):
        assert await rendered(*HELLO, *HELLO) == [{"role": "user", "content": "Hello\nHello"}]

    async def test_thinking_is_dropped(self, rendered):
        blocks = [{"type": "thinking", "thinking": "t", "signature": "s"}, *texts("ok")]
        messages = await rendered(*HELLO, {"role": "assistant", "content": blocks}, *HELLO)
        assert messages[1] == {"role": "assistant", "content": "ok"}

    async def test_message_of_thinking_alone_stays(self, rendered):
        silent = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
        messages = await rendered(*HELLO, silent, *HELLO)
        assert messages == [*HELLO, {"role": "assistant", "content": ""}, *HELLO]

    async def test_tool_blocks(self, rendered):
        calls = [
            {"type": "tool_use", "id": f"t{i}", "name": "f", "input": {"a": i}} for i in (1, 2)
        ]
        results = [
            {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
            {"type": "tool_result", "tool_use_id": "t2", "content": texts("rain", "wind")},
            {"type": "tool_result", "tool_use_id": "t3"},
        ]
        messages = await rendered(
            *HELLO,
            {"role": "assistant", "content": [*texts("Let me see."), *calls]},
            {"role": "user", "content": [*results, *texts("And?")]},
        )
        assert messages[1] == {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": f"t{i}",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": i}},
                }
                for i in (1, 2)
            ],
        }
        assert messages[2:] == [
            {"role": "tool", "tool_call_id": "t1", "name": "f", "content": "sunny"},
            {"role": "tool", "tool_call_id": "t2", "name": "f", "content": "rain\nwind"},
            {"role": "tool", "tool_call_id": "t3", "content": ""},
            {"role": "user", "content": "And?"},
        ]

    async def test_a_result_that_is_an_error_says_so(self, rendered):
        block = {"type": "tool_result", "tool_use_id": "t", "content": "No such city."}
        message = {"role": "user", "content": [{**block, "is_error": True}]}
        assert (await rendered(message))[0]["content"] == "Error: No such city."

    @pytest.mark.parametrize("kind", ["image", "document", "search_result", "server_tool_use"])
    async def test_other_blocks_are_refused_by_name(self, client, kind):
        for content in ([{"type": kind}], [{"type": "tool_result", "content": [{"type": kind}]}]):
            response = await client.post(
                URL, json={"messages": [{"role": "user", "content": content}]}
            )
            assert response.status_code == 400
            assert repr(kind) in response.json()["error"]["message"]

    async def test_tool_result_that_is_neither_text_nor_blocks(self, client):
        block = {"type": "tool_result", "tool_use_id": "t", "content": {"a": 1}}
        message = {"role": "user", "content": [block]}
        response = await client.post(URL, json={"messages": [message]})
        assert response.status_code == 400
        assert "messages[0].content[0].content" in response.json()["error"]["message"]

    async def test_last_message_of_the_assistant_is_continued(self, rendered, engine):
        messages = await rendered(*HELLO, {"role": "assistant", "content": texts("The fox")})
        assert messages[-1] == {"role": "assistant", "content": "The fox"}
        assert engine.requests[0].continue_final_message

    async def test_empty_beginning_is_none(self, rendered, engine):
        assert await rendered(*HELLO, {"role": "assistant", "content": ""}) == HELLO
        assert not engine.requests[0].continue_final_message


class TestParameters:
    async def test_defaults(self, client, engine):
        await post(client)
        request = engine.requests[0]
        assert (request.temperature, request.top_p, request.top_k) == (1.0, 1.0, 50)
        assert (request.max_tokens, request.stop, request.n) == (1024, (), 1)
        assert not request.stream
        assert not request.continue_final_message

    async def test_all_reach_the_engine(self, client, engine):
        await post(client, temperature=0, top_p=0.5, top_k=0, max_tokens=7, stop_sequences=["zz"])
        request = engine.requests[0]
        assert (request.temperature, request.top_p, request.top_k) == (0.0, 0.5, 0)
        assert (request.max_tokens, request.stop) == (7, ("zz",))

    async def test_null_is_the_default(self, client, engine):
        """B166."""
        names = "model system max_tokens temperature top_p top_k stream stop_sequences tools"
        response = await post(client, **dict.fromkeys([*names.split(), "tool_choice"]))
        assert response.status_code == 200
        assert response.json()["model"] == "astrai"
        assert engine.requests[0].max_tokens == 1024

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("temperature", [-1, 99, "hot"]),
            ("top_p", [2, -0.5]),
            ("top_k", [-2]),
            ("max_tokens", [-1, 1.5, "x"]),
            ("messages", ["hi", None]),
            ("stop_sequences", ["x"]),
            ("system", [5]),
        ],
    )
    async def test_out_of_range_is_422(self, client, engine, field, values):
        """B121 B162."""
        for value in values:
            for stream in (False, True):
                response = await post(client, **{field: value}, stream=stream)
                assert response.status_code == 422, value
                body = response.json()
                assert body["type"] == "error"
                assert body["error"]["type"] == "invalid_request_error"
                assert body["error"]["message"].startswith(field)
                assert isinstance(body["detail"], list)
                assert body["request_id"] == response.headers["request-id"]
        assert engine.requests == []

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"max_tokens": 0}, "max_tokens"),
            ({"stop_sequences": [""]}, "stop_sequences"),
            ({"messages": []}, "messages: at least one message is required"),
            ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools[1].name"),
            ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
            ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
            ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ],
    )
    async def test_what_cannot_be_served_is_400_by_name(self, client, engine, fields, word):
        response = await post(client, **fields)
        assert response.status_code == 400
        assert word in response.json()["error"]["message"]
        assert engine.requests == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"tools": [], "tool_choice": {"type": "auto"}},
            {"tools": [{"name": "f"}], "tool_choice": {"type": "none"}},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"metadata": {"user_id": "u"}, "context_management": {"edits": []}, "mcp_servers": []},
        ],
    )
    async def test_harmless_is_accepted(self, client, fields):
        assert (await post(client, **fields)).status_code == 200


class TestCountTokens:
    async def test_equals_the_sum_of_the_input_counts(self, client):
        body = {"messages": HELLO, "system": "Be brief."}
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        usage = (await client.post(URL, json=body)).json()["usage"]
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        assert counted == {"input_tokens": sum(usage[part] for part in parts)}

    async def test_runs_nothing(self, client, engine):
        await client.post("/v1/messages/count_tokens", json={"messages": HELLO})
        assert engine.requests == []

    async def test_refuses_like_messages(self, client):
        response = await client.post("/v1/messages/count_tokens", json={"messages": []})
        assert response.status_code == 400
        assert response.json()["type"] == "error"
