"""Tool calls and reasoning in chats, whole and streamed."""

import json

import pytest

from astrai_api.testing import FakeEngine, FakeInfo, Reply
from astrai_engine.errors import GenerationError

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "weather")
]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REASONING = FakeInfo(chat_template="{{ messages }}<think></think>")


@pytest.fixture
def ask(connect, parse_sse):
    """Answer a chat with a text; gives its choices and usage, whole or put together again."""

    async def run(text, *, stream=False, info=None, prompt_end="", **fields):
        engine = FakeEngine(**({"info": info} if info else {}))
        engine.replies.append(Reply(text, prompt_end=prompt_end))
        body = {"messages": HELLO, "tools": TOOLS, "stream": stream, **fields}
        response = await connect(engine).post(URL, json=body)
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()
        return joined([json.loads(data) for _, data in parse_sse(response.content)[:-1]])

    return run


def joined(chunks):
    """A whole answer from its chunks, put together as clients do: all but indexes is joined."""
    choices = {}
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        whole = choices.setdefault(
            choice["index"], {"index": choice["index"], "message": {}, "logprobs": None}
        )
        if choice["finish_reason"]:
            assert "finish_reason" not in whole
            whole["finish_reason"] = choice["finish_reason"]
        if choice["logprobs"]:
            entries = whole["logprobs"] or {"content": [], "refusal": None}
            entries["content"] += choice["logprobs"]["content"]
            whole["logprobs"] = entries
        for name, value in choice["delta"].items():
            if name == "tool_calls":
                for call in value:
                    join_call(whole["message"].setdefault("tool_calls", []), call)
            else:
                before = whole["message"].get(name)
                whole["message"][name] = value if before is None else before + value
    for whole in choices.values():
        message = {"refusal": None, **whole["message"]}
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
        whole["message"] = message
    return {"choices": [choices[i] for i in sorted(choices)], "usage": chunks[-1]["usage"]}


def join_call(calls, delta):
    """B148 B149: an index always; id, type and name once."""
    assert isinstance(delta["index"], int)
    if delta["index"] == len(calls):
        assert delta["id"]
        assert delta["function"] == {"name": delta["function"]["name"], "arguments": ""}
        calls.append({**delta, "function": {**delta["function"]}})
        del calls[-1]["index"]
    else:
        assert delta.keys() == {"index", "function"}
        assert delta["function"].keys() == {"arguments"}
        calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def calls_of(choice):
    """Name and arguments of every call, whose ids are there and differ."""
    calls = choice["message"]["tool_calls"]
    assert all(call["type"] == "function" for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both_ways
class TestCalls:
    async def test_one(self, ask, stream):
        """B148 B149 B150 B151."""
        body = await ask(ADD, stream=stream)
        (choice,) = body["choices"]
        assert calls_of(choice) == [("add", {"a": 1, "b": [2, 3]})]
        assert isinstance(choice["message"]["tool_calls"][0]["function"]["arguments"], str)
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"

    async def test_several(self, ask, stream):
        (choice,) = (await ask(f"{ADD}\n{WEATHER}", stream=stream))["choices"]
        assert [name for name, _ in calls_of(choice)] == ["add", "weather"]
        assert choice["message"]["content"] is None

    async def test_text_beside_a_call(self, ask, stream):
        (choice,) = (await ask(f"Let me see.{WEATHER}", stream=stream))["choices"]
        assert choice["message"]["content"] == "Let me see."
        assert calls_of(choice) == [("weather", {"city": "Paris"})]

    async def test_only_the_first_call_if_one_at_a_time(self, ask, stream):
        body = await ask(f"{ADD}\n{WEATHER}", stream=stream, parallel_tool_calls=False)
        assert [name for name, _ in calls_of(body["choices"][0])] == ["add"]

    async def test_every_choice_has_its_own(self, ask, stream):
        body = await ask(ADD, stream=stream, n=3)
        ids = [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
        assert len(set(ids)) == 3
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]

    async def test_cut_by_the_limit(self, ask, stream):
        """The call so far is told, and the reason is the limit."""
        (choice,) = (await ask(ADD, stream=stream, max_tokens=6))["choices"]
        assert choice["finish_reason"] == "length"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "add"
        assert '{"a": 1, "b": [2, 3]}'.startswith(call["function"]["arguments"])

    async def test_a_forced_call_cut_before_its_name_has_no_text(self, ask, stream):
        """B147: never plain text."""
        body = await ask(ADD, stream=stream, max_tokens=2, tool_choice="required")
        (choice,) = body["choices"]
        assert not choice["message"]["content"]
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "length"

    async def test_text_that_only_looks_like_a_call_stays_text(self, ask, stream):
        text = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call> and more'
        (choice,) = (await ask(text, stream=stream))["choices"]
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == "stop"

    async def test_choice_none_reads_no_calls(self, ask, stream):
        (choice,) = (await ask(ADD, stream=stream, tool_choice="none"))["choices"]
        assert choice["message"]["content"] == ADD
        assert choice["finish_reason"] == "stop"

    async def test_no_tools_read_no_calls(self, ask, stream):
        (choice,) = (await ask(ADD, stream=stream, tools=None))["choices"]
        assert choice["message"]["content"] == ADD

    async def test_usage_is_the_same(self, ask, stream):
        with_tools = (await ask(ADD, stream=stream))["usage"]
        assert with_tools == (await ask(ADD, stream=stream, tools=None))["usage"]

    async def test_a_stop_string_in_a_call(self, ask, stream):
        (choice,) = (await ask(ADD, stream=stream, stop=["2"]))["choices"]
        assert choice["finish_reason"] == "stop"

    async def test_every_token_has_its_logprobs(self, ask, stream):
        body = await ask(f"See: {ADD}", stream=stream, logprobs=True)
        entries = body["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == f"See: {ADD}"


@both_ways
class TestReasoning:
    TEXT = "<think>\nTwo plus two.\n</think>\n\nFour."

    async def test_apart_from_the_content(self, ask, stream):
        (choice,) = (await ask(self.TEXT, stream=stream, info=REASONING))["choices"]
        assert choice["message"]["reasoning_content"].strip() == "Two plus two."
        assert choice["message"]["content"] == "Four."
        assert choice["finish_reason"] == "stop"

    async def test_the_prompt_may_open_it(self, ask, stream):
        body = await ask("Hm.</think>Four.", stream=stream, info=REASONING, prompt_end="<think>\n")
        message = body["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Four.")

    async def test_counted(self, ask, stream):
        body = await ask("<think> a b c </think> d", stream=stream, info=REASONING)
        details = body["usage"]["completion_tokens_details"]
        assert details == {"reasoning_tokens": 4}

    async def test_before_a_call(self, ask, stream):
        body = await ask(f"<think>Hm.</think>\n\n{ADD}", stream=stream, info=REASONING)
        (choice,) = body["choices"]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["message"]["content"] is None
        assert calls_of(choice) == [("add", {"a": 1, "b": [2, 3]})]

    async def test_left_out_if_unwanted(self, ask, stream):
        body = await ask(self.TEXT, stream=stream, info=REASONING, include_reasoning=False)
        assert "reasoning_content" not in body["choices"][0]["message"]
        assert body["choices"][0]["message"]["content"] == "Four."

    async def test_cut_inside(self, ask, stream):
        body = await ask("<think>a b c", stream=stream, info=REASONING, max_tokens=2)
        (choice,) = body["choices"]
        assert choice["message"]["reasoning_content"] == "a b"
        assert choice["message"]["content"] == ""
        assert choice["finish_reason"] == "length"

    async def test_a_model_without_it_has_no_details(self, ask, stream):
        body = await ask(self.TEXT, stream=stream)
        assert "completion_tokens_details" not in body["usage"]
        assert body["choices"][0]["message"]["content"] == self.TEXT


class TestSwitch:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, {}),
            ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
            ({"reasoning_effort": "none"}, {"enable_thinking": False, "thinking": False}),
            (
                {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
                {"enable_thinking": True, "thinking": False},
            ),
            ({"reasoning_effort": "high"}, {}),
        ],
    )
    async def test_templates_get_it(self, client, engine, fields, expected):
        await client.post(URL, json={"messages": HELLO, **fields})
        assert engine.requests[0].chat_template_kwargs == expected


class TestStream:
    async def test_a_forced_call_begins_without_content(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply(ADD))
        body = {"messages": HELLO, "tools": TOOLS, "stream": True, "tool_choice": "required"}
        response = await connect(engine).post(URL, json=body)
        first = json.loads(parse_sse(response.content)[0][1])
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}

    async def test_arguments_come_as_they_are_made(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply(ADD))
        body = {"messages": HELLO, "tools": TOOLS, "stream": True}
        response = await connect(engine).post(URL, json=body)
        chunks = [json.loads(data) for _, data in parse_sse(response.content)[:-1]]
        assert sum("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks) > 3

    async def test_a_failure_inside_a_call_is_an_error_event(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply(ADD[:40], GenerationError("The sampler failed.")))
        body = {"messages": HELLO, "tools": TOOLS, "stream": True}
        response = await connect(engine).post(URL, json=body)
        events = parse_sse(response.content)
        assert json.loads(events[-2][1])["error"]["message"] == "The sampler failed."
        assert events[-1] == (None, "[DONE]")
