"""Text completions over HTTP: prompts of every kind, echo, log-probabilities, streams."""

import json

import pytest

from astrai_api.testing import DEFAULT_TEXT, FakeEngine, FakeInfo, Gate, Reply
from astrai_engine.errors import GenerationError, QueueFullError
from astrai_engine.events import Finished, FinishReason, TokenDelta, TokenLogprob, TopLogprob, Usage

URL = "/v1/completions"


async def post(client, **fields):
    return await client.post(URL, json={"prompt": "one two", **fields})


@pytest.fixture
def stream(client, parse_sse):
    async def run(**fields):
        response = await post(client, stream=True, **fields)
        assert response.status_code == 200
        events = parse_sse(response.content)
        assert events[-1] == (None, "[DONE]")
        return [json.loads(data) for _, data in events[:-1]]

    return run


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def logprobs_of(chunks, index=0):
    """The lists of all chunks of a choice, joined."""
    joined = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index and choice["logprobs"]:
                for name, values in choice["logprobs"].items():
                    joined[name] += values
    return joined


class TestWhole:
    async def test_body(self, connect):
        engine = FakeEngine.scripted(Reply(" three", cached_tokens=1))
        body = (await post(connect(engine), model="astrai")).json()
        assert body.pop("id").startswith("cmpl-")
        assert isinstance(body.pop("created"), int)
        assert body == {
            "object": "text_completion",
            "model": "astrai",
            "choices": [{"index": 0, "text": " three", "logprobs": None, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 2,
                "total_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        }

    async def test_sixteen_tokens_by_default(self, client, engine):
        choice = (await post(client)).json()["choices"][0]
        assert engine.requests[0].max_tokens == 16
        assert choice["finish_reason"] == "length"

    async def test_a_text_is_a_raw_prompt(self, client, engine):
        await post(client, prompt="<|im_start|>")
        assert engine.requests[0].prompt == "<|im_start|>"
        assert engine.requests[0].messages is None

    async def test_stop_cuts_where_it_begins(self, connect):
        """B071."""
        engine = FakeEngine(default="The quick brown fox")
        choice = (await post(connect(engine), stop=["own fox"])).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("The quick br", "stop")


class TestPrompts:
    @pytest.mark.parametrize(
        ("prompt", "expected"),
        [
            ("a b c", [("a b c", None)]),
            (["a b", "c"], [("a b", None), ("c", None)]),
            ([1, 2, 3], [(None, [1, 2, 3])]),
            ([[1, 2], [3]], [(None, [1, 2]), (None, [3])]),
        ],
    )
    async def test_every_form(self, client, engine, prompt, expected):
        body = (await post(client, prompt=prompt, max_tokens=1)).json()
        assert [(r.prompt, r.prompt_token_ids) for r in engine.requests] == expected
        assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
        assert body["usage"]["prompt_tokens"] == 3
        assert body["usage"]["completion_tokens"] == len(expected)

    async def test_choices_are_numbered_prompt_by_prompt(self, connect):
        engine = FakeEngine(default=lambda request: f"of {request.prompt}")
        body = (await post(connect(engine), prompt=["a", "b"], n=2)).json()
        texts = [(choice["index"], choice["text"]) for choice in body["choices"]]
        assert texts == [(0, "of a"), (1, "of a"), (2, "of b"), (3, "of b")]
        assert body["usage"]["prompt_tokens"] == 2

    async def test_streams_of_several_prompts(self, connect, parse_sse):
        engine = FakeEngine(default=lambda request: f"of {request.prompt}")
        response = await post(connect(engine), prompt=["a", "b"], n=2, stream=True)
        chunks = [json.loads(data) for _, data in parse_sse(response.content)[:-1]]
        assert [text_of(chunks, i) for i in range(4)] == ["of a", "of a", "of b", "of b"]
        reasons = [c["choices"][0]["finish_reason"] for c in chunks]
        assert [reason for reason in reasons if reason] == ["stop"] * 4
        assert chunks[-1]["usage"]["prompt_tokens"] == 2

    @pytest.mark.parametrize(
        "prompt", [[], [[], []], "", [""], None, {"a": 1}, [1, "a"], [True], [1.5], [[1], "a"], 5]
    )
    async def test_bad_ones_are_refused(self, client, engine, prompt):
        response = await post(client, prompt=prompt)
        assert response.status_code in (400, 422)
        assert response.json()["error"]["param"].startswith("prompt")
        assert (await post(client)).status_code == 200

    async def test_token_outside_the_vocabulary(self, client):
        """B139."""
        response = await post(client, prompt=[999_999_999])
        assert response.status_code == 400
        assert (await post(client, prompt=[1])).status_code == 200

    async def test_more_choices_than_the_limit(self, client, engine):
        response = await post(client, prompt=["a"] * 65, n=2)
        assert response.status_code == 400
        assert "128" in response.json()["error"]["message"]
        assert engine.handles == []

    async def test_one_refused_prompt_aborts_the_others(self, connect):
        full = QueueFullError("Full.", retry_after=1)
        engine = FakeEngine.scripted(Reply(Gate()), Reply(refuse=full))
        response = await post(connect(engine), prompt=["a", "b"])
        assert response.status_code == 429
        assert engine.handles[0].aborted.is_open

    async def test_one_failing_prompt_fails_the_request(self, connect):
        engine = FakeEngine.scripted(Reply("a"), Reply(GenerationError("The sampler failed.")))
        response = await post(connect(engine), prompt=["a", "b"])
        assert response.status_code == 500

    async def test_prompt_over_the_context(self, connect):
        engine = FakeEngine(info=FakeInfo(max_seq_len=4))
        response = await post(connect(engine), prompt=[1] * 9)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


class TestEcho:
    @pytest.mark.parametrize("prompt", ["one two", list(b"one two")])
    @pytest.mark.parametrize("logprobs", [None, 0, 2])
    async def test_prompt_comes_first(self, client, stream, prompt, logprobs):
        """B097."""
        fields = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": 1}
        choice = (await post(client, **fields)).json()["choices"][0]
        assert choice["text"] == "one twoOnce"
        assert text_of(await stream(**fields)) == "one twoOnce"

    async def test_logprobs_of_prompt_and_answer(self, client):
        """B097."""
        fields = {"echo": True, "logprobs": 1, "max_tokens": 1}
        assert (await post(client, **fields)).json()["choices"][0]["logprobs"] == {
            "tokens": ["one", " two", "Once"],
            "token_logprobs": [None, -0.5, -0.5],
            "top_logprobs": [None, {" two": -0.5}, {"Once": -0.5}],
            "text_offset": [0, 3, 7],
        }

    @pytest.mark.parametrize("logprobs", [None, 1])
    async def test_nothing_but_the_prompt(self, client, stream, engine, logprobs):
        fields = {"echo": True, "max_tokens": 0, "logprobs": logprobs}
        choice = (await post(client, **fields)).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("one two", "length")
        assert text_of(await stream(**fields)) == "one two"
        assert engine.requests[0].prompt_logprobs is not None
        if logprobs is not None:
            assert choice["logprobs"]["token_logprobs"] == [None, -0.5]

    async def test_stream_joins_to_the_whole(self, client, stream):
        fields = {"prompt": ["a b", "c"], "echo": True, "logprobs": 2, "n": 2, "max_tokens": 3}
        whole = (await post(client, **fields)).json()["choices"]
        chunks = await stream(**fields)
        for choice in whole:
            assert text_of(chunks, choice["index"]) == choice["text"]
            assert logprobs_of(chunks, choice["index"]) == choice["logprobs"]

    async def test_every_generated_token_has_an_entry(self, connect, parse_sse):
        """Evaluation harnesses take all but the last entry for the prompt's: here, the end's."""
        fields = {"echo": True, "logprobs": 1, "max_tokens": 1}
        client = connect(FakeEngine(default=""))
        choice = (await post(client, **fields)).json()["choices"][0]
        assert choice["logprobs"]["tokens"] == ["one", " two", ""]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
        assert choice["logprobs"]["text_offset"] == [0, 3, 7]
        response = await post(client, **fields, stream=True)
        chunks = [json.loads(data) for _, data in parse_sse(response.content)[:-1]]
        assert logprobs_of(chunks) == choice["logprobs"]

    async def test_runs_the_tokens_it_repeats(self, client, engine):
        await post(client, echo=True)
        request = engine.requests[0]
        assert request.prompt is None
        assert engine.tokenizer.decode(request.prompt_token_ids) == "one two"

    @pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": 0, "echo": False}])
    async def test_no_tokens_without_echo_is_422(self, client, fields):
        response = await post(client, **fields)
        assert response.status_code == 422
        assert response.json()["error"]["param"] == "max_tokens"

    async def test_surplus_space_of_a_vocabulary_shifts_offsets(self, connect, monkeypatch):
        engine = FakeEngine()
        encode = engine.tokenizer.encode
        monkeypatch.setattr(
            engine.tokenizer, "encode", lambda text, **options: encode(f" {text}", **options)
        )
        fields = {"echo": True, "logprobs": 0, "max_tokens": 1}
        choice = (await post(connect(engine), **fields)).json()["choices"][0]
        assert choice["text"] == "one twoOnce"
        assert choice["logprobs"]["text_offset"] == [0, 3, 7]


class TestLogprobs:
    async def test_sampled_token_is_among_the_alternatives(self, connect):
        top = (TopLogprob(1, "a", b"a", -0.1), TopLogprob(2, "b", b"b", -2.0))
        entry = TokenLogprob(3, "c", b"c", -3.0, top)
        delta = TokenDelta("c", (3,), Usage(2, 0, 1), logprobs=(entry,))
        end = Finished(FinishReason.LENGTH, Usage(2, 0, 1))
        response = await post(connect(FakeEngine.scripted(Reply(delta, end))), logprobs=2)
        logprobs = response.json()["choices"][0]["logprobs"]
        assert logprobs["top_logprobs"] == [{"a": -0.1, "b": -2.0, "c": -3.0}]

    async def test_parts_of_characters_have_names_of_their_own(self, connect):
        """B097."""
        top = (TopLogprob(1, "\ufffd", b"\xe4", -0.1), TopLogprob(2, "\ufffd", b"\xe5", -2.0))
        halves = (
            TokenLogprob(1, "\ufffd", b"\xe4", -0.1, top),
            TokenLogprob(3, "\ufffd", b"\xbd\xa0", float("-inf"), ()),
            TokenLogprob(4, "!", b"!", -1.0, ()),
        )
        delta = TokenDelta("你!", (1, 3, 4), Usage(2, 0, 3), logprobs=halves)
        end = Finished(FinishReason.LENGTH, Usage(2, 0, 3))
        response = await post(connect(FakeEngine.scripted(Reply(delta, end))), logprobs=2)
        assert response.json()["choices"][0]["logprobs"] == {
            "tokens": ["bytes:\\xe4", "bytes:\\xbd\\xa0", "!"],
            "token_logprobs": [-0.1, -9999.0, -1.0],
            "top_logprobs": [
                {"bytes:\\xe4": -0.1, "bytes:\\xe5": -2.0},
                {"bytes:\\xbd\\xa0": -9999.0},
                {"!": -1.0},
            ],
            "text_offset": [0, 0, 1],
        }

    async def test_stream_joins_to_the_whole(self, client, stream):
        whole = (await post(client, logprobs=3, max_tokens=4)).json()["choices"][0]
        assert logprobs_of(await stream(logprobs=3, max_tokens=4)) == whole["logprobs"]
        assert whole["logprobs"]["text_offset"] == [0, 4, 9, 11]

    async def test_control_tokens_count_here_and_not_in_a_chat(self, connect):
        """Harnesses count entries; a chat has those of its text."""
        control, word, end = (
            TokenLogprob(1, "<|tool|>", b"", -0.5),
            TokenLogprob(2, "a", b"a", -1.0),
            TokenLogprob(3, "<|end|>", b"", -2.0),
        )
        usage = Usage(2, 0, 3)
        script = (
            TokenDelta("a", (1, 2), usage, logprobs=(control, word)),
            Finished(FinishReason.STOP, usage, logprobs=(end,)),
        )
        client = connect(FakeEngine.scripted(Reply(*script), Reply(*script)))
        choice = (await post(client, logprobs=0)).json()["choices"][0]
        assert choice["logprobs"]["tokens"] == ["<|tool|>", "a", "<|end|>"]
        assert choice["logprobs"]["token_logprobs"] == [-0.5, -1.0, -2.0]
        assert choice["logprobs"]["text_offset"] == [0, 0, 1]
        chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
        choice = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a"]

    async def test_none_unless_asked_for(self, client, engine):
        await post(client)
        await post(client, logprobs=0)
        assert [r.logprobs for r in engine.requests] == [False, True]


class TestStream:
    async def test_chunks(self, stream):
        chunks = await stream(max_tokens=2)
        assert len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks}) == 1
        assert chunks[0]["object"] == "text_completion"
        shown = [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in chunks]
        assert shown == [("Once", None), (" upon", None), ("", "length"), ("", None)]

    async def test_usage_line(self, stream, client):
        plain = await stream()
        assert plain[-1]["usage"] == (await post(client)).json()["usage"]
        assert not any("usage" in chunk for chunk in plain[:-1])
        asked = await stream(stream_options={"include_usage": True})
        assert asked[-1]["choices"] == []
        assert all(chunk["usage"] is None for chunk in asked[:-1])

    async def test_text_equals_the_whole(self, stream, client):
        """B066."""
        whole = (await post(client, max_tokens=100)).json()["choices"][0]["text"]
        assert text_of(await stream(max_tokens=100)) == whole == DEFAULT_TEXT

    async def test_failure_midway(self, connect, parse_sse):
        engine = FakeEngine.scripted(Reply("a b", GenerationError("The sampler failed.")))
        events = parse_sse((await post(connect(engine), stream=True)).content)
        assert json.loads(events[-2][1])["error"]["message"] == "The sampler failed."
        assert events[-1] == (None, "[DONE]")


class TestRefusals:
    @pytest.mark.parametrize("best_of", [2, 0, -1])
    async def test_best_of_other_than_n(self, client, best_of):
        response = await post(client, best_of=best_of)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "best_of"

    async def test_best_of_equal_to_n(self, client):
        assert (await post(client, best_of=2, n=2)).status_code == 200
        assert (await post(client, best_of=1)).status_code == 200

    async def test_suffix(self, client):
        assert (await post(client, suffix="")).status_code == 200
        response = await post(client, suffix="end")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "suffix"

    async def test_unknown_model(self, client):
        assert (await post(client, model="nope")).status_code == 404
