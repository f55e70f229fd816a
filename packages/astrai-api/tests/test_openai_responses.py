"""Responses over HTTP: items in, one message out, whole or as events."""

import json

import pytest

from astrai_api.testing import FakeEngine, Reply
from astrai_engine.errors import GenerationError, PromptTooLongError

URL = "/v1/responses"
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def post(client, **fields):
    return await client.post(URL, json={"input": "Hello", **fields})


@pytest.fixture
def events_of(parse_sse):
    """Post with ``stream``; gives the decoded events, after checking what all have in common."""

    async def run(client, **fields):
        response = await post(client, stream=True, **fields)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = parse_sse(response.content)
        events = [json.loads(data) for _, data in frames]
        assert [name for name, _ in frames] == [event["type"] for event in events]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    return run


class TestWhole:
    async def test_body(self, connect):
        engine = FakeEngine.scripted(Reply("Hello there!", cached_tokens=1))
        body = (await post(connect(engine), instructions="Be brief.", store=True)).json()
        assert body.pop("id").startswith("resp_")
        assert isinstance(body.pop("created_at"), int)
        (item,) = body.pop("output")
        assert item.pop("id").startswith("msg_")
        assert item == {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Hello there!", "annotations": [], "logprobs": []}
            ],
        }
        assert body.pop("usage") == {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 8,
        }
        assert body == {
            "object": "response",
            "status": "completed",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": "Be brief.",
            "max_output_tokens": None,
            "metadata": {},
            "model": "astrai",
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
        }

    async def test_cut_at_the_limit(self, client, engine):
        body = (await post(client, max_output_tokens=2)).json()
        assert engine.requests[0].max_tokens == 2
        assert body["status"] == body["output"][0]["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][0]["content"][0]["text"] == "Once upon"

    async def test_limit_when_none_is_given_is_that_of_chats(self, client, engine):
        await post(client)
        assert engine.requests[0].max_tokens == 2048

    @pytest.mark.parametrize(
        "fields", [{"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}]
    )
    async def test_logprobs(self, client, fields):
        body = (await post(client, max_output_tokens=1, **fields)).json()
        (entry,) = body["output"][0]["content"][0]["logprobs"]
        assert (entry["token"], entry["logprob"], entry["bytes"]) == ("Once", -0.5, list(b"Once"))
        assert len(entry["top_logprobs"]) == fields.get("top_logprobs", 0)

    async def test_failure(self, connect):
        engine = FakeEngine.scripted(Reply(GenerationError("The sampler failed.")))
        response = await post(connect(engine))
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "generation_failed"


class TestStream:
    async def test_order(self, client, events_of):
        events = await events_of(client, max_output_tokens=None)
        kinds = [event["type"] for event in events]
        assert list(dict.fromkeys(kinds)) == ORDER
        assert kinds.count("response.output_text.delta") == 17
        assert len(kinds) == len(ORDER) + 16

    async def test_everything_of_the_whole_is_in_the_last_event(self, client, events_of):
        last = (await events_of(client))[-1]["response"]
        whole = (await post(client)).json()
        for body in (last, whole):
            body.pop("id"), body.pop("created_at"), body["output"][0].pop("id")
        assert last == whole

    async def test_first_events(self, client, events_of):
        created, _, added, part, *_ = await events_of(client)
        assert created["response"]["status"] == "in_progress"
        assert created["response"]["output"] == []
        assert created["response"]["usage"] is None
        assert added["output_index"] == 0
        assert added["item"]["content"] == []
        assert part["part"] == {
            "type": "output_text",
            "text": "",
            "annotations": [],
            "logprobs": [],
        }
        assert part["item_id"] == added["item"]["id"]
        assert (part["output_index"], part["content_index"]) == (0, 0)

    async def test_ids_never_change(self, client, events_of):
        events = await events_of(client)
        responses = {e["response"]["id"] for e in events if "response" in e}
        items = {e["item_id"] for e in events if "item_id" in e}
        items |= {e["item"]["id"] for e in events if "item" in e}
        items |= {i["id"] for e in events if "response" in e for i in e["response"]["output"]}
        assert len(responses) == len(items) == 1

    async def test_deltas_join_to_the_text(self, connect, events_of):
        text = "naïve 你好 🙂 \u2028\u2029\x85 end"
        events = await events_of(connect(FakeEngine(default=text)))
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        done = next(e for e in events if e["type"] == "response.output_text.done")
        assert "".join(e["delta"] for e in deltas) == done["text"] == text
        assert all(e["logprobs"] == [] for e in deltas)

    async def test_cut_at_the_limit(self, client, events_of):
        last = (await events_of(client, max_output_tokens=1))[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}

    async def test_empty_answer(self, connect, events_of):
        events = await events_of(connect(FakeEngine(default="")))
        assert [e["type"] for e in events] == [kind for kind in ORDER if "delta" not in kind]

    async def test_logprobs_travel_with_their_text(self, client, events_of):
        events = await events_of(client, max_output_tokens=1, top_logprobs=1)
        delta = next(e for e in events if e["type"] == "response.output_text.delta")
        done = next(e for e in events if e["type"] == "response.output_text.done")
        assert delta["logprobs"] == done["logprobs"]
        assert delta["logprobs"][0]["token"] == "Once"

    async def test_failure_midway(self, connect, events_of):
        engine = FakeEngine.scripted(Reply("a b", GenerationError("The sampler failed.")))
        last = (await events_of(connect(engine)))[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {
            "code": "generation_failed",
            "message": "The sampler failed.",
        }

    async def test_refusals_are_http_errors(self, connect):
        """Agents branch on the code when a prompt is too long."""
        engine = FakeEngine.scripted(Reply(refuse=PromptTooLongError(9, 7, 8)))
        response = await post(connect(engine), stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


def message(role, content):
    return {"type": "message", "role": role, "content": content}


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RENDERED_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1}'},
}
SAID = {"role": "user", "content": "hi"}


class TestItems:
    @pytest.mark.parametrize(
        ("items", "expected"),
        [
            ("hi", [SAID]),
            ([{"role": "user", "content": "hi"}], [SAID]),
            ([message("user", [{"type": "input_text", "text": "hi"}])], [SAID]),
            (
                [message("user", [{"type": "input_text", "text": t} for t in ("a", "", "b")])],
                [{"role": "user", "content": "a\nb"}],
            ),
            (
                [message("developer", "rules"), message("user", "hi")],
                [{"role": "system", "content": "rules"}, SAID],
            ),
            (
                [message("assistant", [{"type": "output_text", "text": "ok", "annotations": []}])],
                [{"role": "assistant", "content": "ok"}],
            ),
            (
                [message("assistant", [{"type": "refusal", "refusal": "no"}])],
                [{"role": "assistant", "content": "no"}],
            ),
            ([{"type": "reasoning", "summary": [], "content": None}, SAID], [SAID]),
            (
                [
                    message("assistant", "I look."),
                    CALL,
                    {**CALL, "call_id": "c2"},
                    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
                    {
                        "type": "function_call_output",
                        "call_id": "c2",
                        "output": [{"type": "input_text", "text": "rain"}],
                    },
                ],
                [
                    {
                        "role": "assistant",
                        "content": "I look.",
                        "tool_calls": [RENDERED_CALL, {**RENDERED_CALL, "id": "c2"}],
                    },
                    {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "sunny"},
                    {"role": "tool", "tool_call_id": "c2", "name": "f", "content": "rain"},
                ],
            ),
            (
                [
                    SAID,
                    {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"},
                    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
                ],
                [
                    SAID,
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {
                                "id": "c1",
                                "type": "function",
                                "function": {"name": "patch", "arguments": {"input": "x"}},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c1", "name": "patch", "content": "done"},
                ],
            ),
        ],
    )
    async def test_become_messages(self, client, engine, items, expected):
        response = await post(client, input=items)
        assert response.status_code == 200, response.text
        assert engine.requests[0].messages == expected

    async def test_instructions_come_first(self, client, engine):
        await post(client, instructions="Be brief.")
        assert engine.requests[0].messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ]

    @pytest.mark.parametrize(
        ("items", "param"),
        [
            ([message("user", [{"type": "input_image", "image_url": "x"}])], "input[0].content[0]"),
            ([message("user", [{"type": "input_file", "file_id": "x"}])], "input[0].content[0]"),
            ([SAID, {"type": "item_reference", "id": "x"}], "input[1].type"),
            ([message("wizard", "hi")], "input[0].role"),
            ([{"content": "hi"}], "input[0].role"),
            ([], "messages"),
        ],
    )
    async def test_refused_by_name(self, client, items, param):
        """B124."""
        response = await post(client, input=items)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(param)

    @pytest.mark.parametrize("items", [None, 5, [5], {"role": "user"}])
    async def test_wrong_types(self, client, items):
        assert (await post(client, input=items)).status_code == 422


FUNCTION = {"type": "function", "name": "shell", "parameters": {"type": "object"}}


class TestTools:
    async def test_shape_of_an_agents_request(self, client, events_of):
        events = await events_of(
            client,
            instructions="Be brief.",
            input=[message("developer", [{"type": "input_text", "text": "rules"}]), SAID],
            tools=[FUNCTION, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}],
            tool_choice="none",
            parallel_tool_calls=False,
            reasoning={"effort": "medium", "summary": "auto"},
            store=False,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="k",
            text={"verbosity": "medium"},
        )
        response = events[-1]["response"]
        assert response["status"] == "completed"
        assert response["tools"] == [{**FUNCTION, "description": None, "strict": False}]
        assert (response["tool_choice"], response["parallel_tool_calls"]) == ("none", False)

    @pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
    async def test_others_than_functions_are_left_out(self, client, choice):
        response = await post(client, tools=[{"type": "web_search"}], **choice)
        assert response.status_code == 200
        assert response.json()["tools"] == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"tool_choice": "required"},
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
        ],
    )
    async def test_what_asks_for_a_call_is_refused(self, client, fields):
        """B147."""
        response = await post(client, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("tools", "tool_choice")
