"""Chat completions over HTTP: whole answers, streams, parameters."""

import json

import pytest

from astrai_api.testing import FakeEngine, FakeInfo, Reply
from astrai_engine.errors import GenerationError, InvalidRequestError
from astrai_engine.events import TokenDelta, TokenLogprob, TopLogprob, Usage

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


async def post(client, **fields):
    return await client.post(URL, json={"messages": HELLO, **fields})


@pytest.fixture
def stream(client, parse_sse):
    """Post with ``stream``; gives the decoded chunks, after checking the frame of the stream."""

    async def run(**fields):
        response = await post(client, stream=True, **fields)
        assert response.status_code == 200
        events = parse_sse(response.content)
        assert all(name is None for name, _ in events)
        assert events[-1] == (None, "[DONE]")
        return [json.loads(data) for _, data in events[:-1]]

    return run


class TestWhole:
    async def test_body(self, connect):
        engine = FakeEngine.scripted(Reply("Hello there!", cached_tokens=1))
        response = await post(connect(engine), model="astrai")
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body.pop("id").startswith("chatcmpl-")
        assert isinstance(body.pop("created"), int)
        assert body == {
            "object": "chat.completion",
            "model": "astrai",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 3,
                "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        }

    @pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
    async def test_is_json_unless_a_stream_is_asked_for(self, client, stream):
        """B090."""
        response = await post(client, **stream)
        assert response.headers["content-type"] == "application/json"

    async def test_ids_differ(self, client):
        assert (await post(client)).json()["id"] != (await post(client)).json()["id"]

    async def test_n_choices(self, client):
        body = (await post(client, n=3, max_tokens=2)).json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["prompt_tokens"] == 2
        assert body["usage"]["completion_tokens"] == 6

    async def test_non_ascii_text_survives(self, connect):
        text = "naïve 你好 🙂 \u2028\u2029\x85"
        response = await post(connect(FakeEngine(default=text)))
        assert response.json()["choices"][0]["message"]["content"] == text
        assert response.content.isascii()

    async def test_failure_is_an_error(self, connect):
        engine = FakeEngine.scripted(Reply("a b", GenerationError("The sampler failed.")))
        response = await post(connect(engine))
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "The sampler failed."


class TestStream:
    async def test_chunks(self, stream):
        chunks = await stream(max_tokens=2)
        heads = {(c["id"], c["object"], c["created"], c["model"]) for c in chunks}
        assert len(heads) == 1
        assert heads.pop()[1] == "chat.completion.chunk"
        assert [c["choices"][0]["delta"] for c in chunks] == [
            {"role": "assistant", "content": ""},
            {"content": "Once"},
            {"content": " upon"},
            {},
            {},
        ]

    async def test_headers(self, client):
        response = await post(client, stream=True)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert "content-length" not in response.headers

    async def test_finish_reason_is_null_until_the_last_choice(self, stream):
        """B081."""
        reasons = [c["choices"][0]["finish_reason"] for c in await stream(max_tokens=2)]
        assert reasons == [None, None, None, "length", None]

    @pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
    async def test_usage_line_unasked_keeps_a_choice(self, stream, options):
        """B083."""
        chunks = await stream(max_tokens=2, stream_options=options)
        assert not any("usage" in chunk for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == [
            {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        ]

    async def test_usage_line_asked_for_has_no_choice(self, stream):
        """B083 B084 B085."""
        chunks = await stream(max_tokens=2, stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["id"] == chunks[0]["id"]

    @pytest.mark.parametrize("include", [True, False])
    async def test_usage_equals_that_of_the_whole_answer(self, stream, client, include):
        """B085."""
        line = (await stream(stream_options={"include_usage": include}))[-1]
        assert line["usage"] == (await post(client)).json()["usage"]
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert {k: line[k] for k in counts} == {k: line["usage"][k] for k in counts}

    async def test_role_comes_once(self, stream):
        """B086."""
        deltas = [c["choices"][0]["delta"] for c in await stream()]
        assert deltas[0]["role"] == "assistant"
        assert not any("role" in delta for delta in deltas[1:])

    async def test_last_data_line_is_done(self, client):
        """B087."""
        response = await post(client, stream=True)
        assert response.text.endswith("\n\ndata: [DONE]\n\n")
        assert response.text.count("[DONE]") == 1

    async def test_no_chunk_has_an_error_key(self, stream):
        assert not any("error" in chunk for chunk in await stream())

    async def test_every_choice_has_role_text_and_reason(self, stream):
        chunks = await stream(n=2, max_tokens=1)
        choices = [c["choices"][0] for c in chunks[:-1]]
        for index in (0, 1):
            own = [choice for choice in choices if choice["index"] == index]
            assert [choice["delta"] for choice in own] == [
                {"role": "assistant", "content": ""},
                {"content": "Once"},
                {},
            ]
            assert own[-1]["finish_reason"] == "length"

    async def test_separators_and_emoji_survive_any_line_splitter(self, connect, parse_sse):
        text = "a\u2028b\u2029c\x85d\r\ne 你好 🙂"
        response = await post(connect(FakeEngine(default=text)), stream=True)
        assert response.content.isascii()
        chunks = [json.loads(data) for _, data in parse_sse(response.content)[:-1]]
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text

    async def test_empty_answer(self, connect, parse_sse):
        response = await post(connect(FakeEngine(default="")), stream=True)
        chunks = [json.loads(data) for _, data in parse_sse(response.content)[:-1]]
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, "stop", None]

    async def test_failure_midway_is_an_error_event(self, connect, parse_sse):
        """B090 B091."""
        engine = FakeEngine.scripted(Reply("a b c", GenerationError("The sampler failed.")))
        events = parse_sse((await post(connect(engine), stream=True)).content)
        assert json.loads(events[-2][1]) == {
            "error": {
                "message": "The sampler failed.",
                "type": "server_error",
                "param": None,
                "code": "generation_failed",
            }
        }
        assert events[-1] == (None, "[DONE]")
        chunks = [json.loads(data) for _, data in events[:-2]]
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * len(chunks)

    async def test_failure_before_the_first_token_is_an_http_error(self, connect):
        engine = FakeEngine.scripted(Reply(GenerationError("The sampler failed.")))
        response = await post(connect(engine), stream=True)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"


class TestParameters:
    async def test_defaults(self, client, engine):
        await post(client)
        request = engine.requests[0]
        assert (request.temperature, request.top_p, request.top_k) == (1.0, 1.0, 50)
        assert (request.max_tokens, request.n, request.stop) == (2048, 1, ())
        assert (request.frequency_penalty, request.presence_penalty) == (0.0, 0.0)
        assert request.rep_window is None
        assert not request.stream
        assert request.messages == [{"role": "user", "content": "Hello"}]

    async def test_all_reach_the_engine(self, client, engine):
        given = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "min_tokens": 2,
            "frequency_penalty": 0.25,
            "presence_penalty": -0.25,
            "repetition_penalty": 1.25,
            "seed": -(2**63),
            "n": 2,
            "stop_token_ids": [5],
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 3,
            "cache_salt": "mine",
            "chat_template_kwargs": {"enable_thinking": False},
        }
        response = await post(client, logit_bias={"7": -100, "8": 1.5}, stop="zz", **given)
        assert response.status_code == 200
        request = engine.requests[0]
        assert {name: getattr(request, name) for name in given} == given
        assert request.logit_bias == {7: -100.0, 8: 1.5}
        assert request.stop == ("zz",)

    async def test_newer_limit_wins(self, client):
        """B131."""
        body = (await post(client, max_completion_tokens=3, max_tokens=10)).json()
        assert body["usage"]["completion_tokens"] == 3
        body = (await post(client, max_completion_tokens=2)).json()
        assert body["usage"]["completion_tokens"] == 2

    async def test_null_is_the_default(self, client, engine):
        """B166."""
        names = ("temperature top_p top_k n stop stream stream_options seed tools tool_choice "
                 "response_format logprobs top_logprobs max_tokens max_completion_tokens "
                 "presence_penalty frequency_penalty logit_bias user metadata model")  # fmt: skip
        response = await post(client, **dict.fromkeys(names.split()))
        assert response.status_code == 200
        await post(client)
        assert response.json()["model"] == "astrai"
        plain, nulled = engine.requests[1], engine.requests[0]
        assert (plain.temperature, plain.max_tokens) == (nulled.temperature, nulled.max_tokens)

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("temperature", [3, -1, 999999, "hot", "0.5", True, [1]]),
            ("top_p", [-1, 1.5]),
            ("min_p", [2, -0.1]),
            ("top_k", [-2, 1.5]),
            ("frequency_penalty", [100, -2.1]),
            ("presence_penalty", [2.1]),
            ("repetition_penalty", [0]),
            ("max_tokens", [0, -3, "ten"]),
            ("max_completion_tokens", [0]),
            ("n", [0, -1, 100000]),
            ("seed", [2**63, -(2**63) - 1, "1"]),
            ("top_logprobs", [21, -1]),
            ("logit_bias", [{"1": 101}, {"x": 1}, [1]]),
            ("stream", ["yes", 1]),
            ("stop", [5, {"a": 1}]),
            ("messages", ["hi", None, {}]),
            ("response_format", ["json"]),
        ],
    )
    async def test_out_of_range_is_422_naming_the_field(self, client, engine, field, values):
        """B055 B121."""
        for value in values:
            response = await post(client, **{field: value})
            assert response.status_code == 422, value
            error = response.json()["error"]
            assert error["param"].startswith(field)
            assert error["message"].startswith(field)
            assert response.json()["detail"][0]["loc"][:2] == ["body", field]
        assert engine.requests == []
        assert (await post(client)).status_code == 200

    async def test_limit_of_n_is_in_the_message(self, client):
        """B055."""
        assert "128" in (await post(client, n=100000)).json()["error"]["message"]

    async def test_top_logprobs_needs_logprobs(self, client):
        response = await post(client, top_logprobs=3)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "top_logprobs"

    async def test_engine_refusal_is_400(self, connect):
        refusal = InvalidRequestError("No token 99 in the vocabulary.", param="logit_bias")
        engine = FakeEngine.scripted(Reply(refuse=refusal))
        response = await post(connect(engine), logit_bias={"99": 1})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logit_bias"

    async def test_long_prompt_is_refused_with_both_numbers(self, connect):
        engine = FakeEngine(info=FakeInfo(max_seq_len=8))
        body = {"messages": [{"role": "user", "content": "fox " * 20}]}
        for stream in (False, True):
            response = await connect(engine).post(URL, json={**body, "stream": stream})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["message"] == (
                "prompt is too long: 21 tokens > 7 maximum. "
                "This model's maximum context length is 8 tokens."
            )


class TestStops:
    @pytest.mark.parametrize("stop", ["time", ["time"], ["zz", "time"]])
    async def test_text_ends_before_it(self, client, stop):
        choice = (await post(client, stop=stop)).json()["choices"][0]
        assert choice["message"]["content"] == "Once upon a "
        assert choice["finish_reason"] == "stop"

    async def test_no_stops(self, client, engine):
        """B074."""
        assert (await post(client, stop=[])).status_code == 200
        assert engine.requests[0].stop == ()

    @pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], [None], ["x"] * 17])
    async def test_bad_entries_are_refused(self, client, stop):
        """B074."""
        response = await post(client, stop=stop)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "stop"

    async def test_sixteen_are_accepted(self, client):
        assert (await post(client, stop=["zz"] * 16)).status_code == 200


class TestLogprobs:
    async def test_whole(self, client):
        choice = (await post(client, logprobs=True, top_logprobs=2, max_tokens=1)).json()
        assert choice["choices"][0]["logprobs"] == {
            "content": [
                {
                    "token": "Once",
                    "logprob": -0.5,
                    "bytes": list(b"Once"),
                    "top_logprobs": [
                        {"token": "Once", "logprob": -0.5, "bytes": list(b"Once")},
                        {"token": "Once1", "logprob": -2.5, "bytes": list(b"Once1")},
                    ],
                }
            ],
            "refusal": None,
        }

    async def test_stream_chunks_join_to_the_whole(self, stream, client):
        chunks = await stream(logprobs=True, max_tokens=4)
        entries = [
            entry
            for chunk in chunks
            if chunk["choices"][0]["logprobs"]
            for entry in chunk["choices"][0]["logprobs"]["content"]
        ]
        whole = (await post(client, logprobs=True, max_tokens=4)).json()
        assert entries == whole["choices"][0]["logprobs"]["content"]
        assert [entry["top_logprobs"] for entry in entries] == [[]] * 4

    async def test_impossible_token_and_half_character(self, connect):
        top = (TopLogprob(1, "\ufffd", b"\xe4", float("-inf")),)
        entry = TokenLogprob(1, "\ufffd", b"\xe4", float("-inf"), top)
        delta = TokenDelta("", (1,), Usage(2, 0, 1), logprobs=(entry,))
        response = await post(connect(FakeEngine.scripted(Reply(delta))), logprobs=True)
        found = response.json()["choices"][0]["logprobs"]["content"][0]
        assert found["logprob"] == found["top_logprobs"][0]["logprob"] == -9999.0
        assert found["bytes"] == [0xE4]


class TestUnknownFields:
    async def test_are_ignored(self, client):
        """B164."""
        response = await post(client, stream_usage=True, totally_unknown={"a": [1]}, store=True)
        assert response.status_code == 200
