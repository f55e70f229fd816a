"""Calls, reasoning and text as the items of a response, whole and streamed."""

import json

import pytest

from astrai_api.testing import FakeEngine, FakeInfo, Reply

URL = "/v1/responses"
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}}
    for name in ("add", "weather")
]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REASONING = FakeInfo(chat_template="<think></think>")


@pytest.fixture
def ask(connect, parse_sse):
    """Answer with a text; gives the response. A stream's events have to make the same items."""

    async def run(text, *, stream=False, info=None, **fields):
        engine = FakeEngine(**({"info": info} if info else {}))
        engine.replies.append(Reply(text))
        body = {"input": "Hello", "tools": TOOLS, "stream": stream, **fields}
        response = await connect(engine).post(URL, json=body)
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()
        events = [(name, json.loads(data)) for name, data in parse_sse(response.content)]
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        assert all(name == data["type"] for name, data in events)
        last = events[-1][1]["response"]
        assert items_of(events) == last["output"]
        return last

    return run


def items_of(events):
    """The items of a stream, whose deltas have to add up to what their last event says."""
    items, texts = [], {}
    for name, data in events:
        place = data.get("output_index")
        if name == "response.output_item.added":
            assert place == len(texts)
            texts[place] = ""
            assert data["item"]["status"] == "in_progress"
            assert not data["item"].get("content")
            assert not data["item"].get("arguments")
        elif name.endswith("delta"):
            assert place == len(texts) - 1
            texts[place] += data["delta"]
        elif name == "response.output_item.done":
            item = data["item"]
            whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
            assert texts[place] == whole
            items.append(item)
        elif name in ("response.output_text.done", "response.reasoning_text.done"):
            assert data["text"] == texts[place]
        elif name == "response.function_call_arguments.done":
            assert data["arguments"] == texts[place]
    return items


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both_ways
class TestItems:
    async def test_calls(self, ask, stream):
        response = await ask(f"{ADD}\n{WEATHER}", stream=stream)
        calls = response["output"]
        assert [(c["type"], c["name"], json.loads(c["arguments"])) for c in calls] == [
            ("function_call", "add", {"a": 1, "b": [2, 3]}),
            ("function_call", "weather", {"city": "Paris"}),
        ]
        assert all(call["id"].startswith("fc_") for call in calls)
        assert len({call["call_id"] for call in calls}) == 2
        assert {call["status"] for call in calls} == {"completed"}
        assert response["status"] == "completed"

    async def test_text_then_a_call(self, ask, stream):
        response = await ask(f"Let me see.{ADD}", stream=stream)
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]
        assert response["output"][0]["content"][0]["text"] == "Let me see."

    async def test_one_at_a_time(self, ask, stream):
        response = await ask(f"{ADD}\n{WEATHER}", stream=stream, parallel_tool_calls=False)
        assert [item["name"] for item in response["output"]] == ["add"]

    async def test_cut(self, ask, stream):
        response = await ask(f"See: {ADD}", stream=stream, max_output_tokens=7)
        assert response["status"] == "incomplete"
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]

    async def test_a_forced_answer_without_a_call_has_no_items(self, ask, stream):
        response = await ask(ADD, stream=stream, tool_choice="required", max_output_tokens=2)
        assert (response["output"], response["status"]) == ([], "incomplete")

    async def test_an_empty_answer_is_an_empty_message(self, ask, stream):
        (item,) = (await ask("", stream=stream))["output"]
        assert item["content"][0]["text"] == ""

    async def test_reasoning(self, ask, stream):
        response = await ask("<think> a b c </think> d", stream=stream, info=REASONING)
        reasoning, message = response["output"]
        assert reasoning["type"] == "reasoning"
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "a b c"}]
        assert message["content"][0]["text"] == "d"
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}

    async def test_logprobs_are_those_of_the_text(self, ask, stream):
        response = await ask(f"Let me see {ADD}", stream=stream, top_logprobs=1)
        entries = response["output"][0]["content"][0]["logprobs"]
        assert "".join(entry["token"] for entry in entries).startswith("Let me see")


async def test_every_text_delta_has_logprobs(connect, parse_sse):
    engine = FakeEngine.scripted(Reply("<think>a</think> b c"), info=REASONING)
    body = {"input": "Hello", "stream": True, "top_logprobs": 1}
    response = await connect(engine).post(URL, json=body)
    events = [json.loads(data) for _, data in parse_sse(response.content)]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(delta["logprobs"]) for delta in deltas] == [1] * len(deltas)
