"""Transport: bodies, errors, models, paths, headers."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrai_api.testing import FakeEngine, Reply
from astrai_engine.errors import (
    AstraiError,
    DeadlineExceededError,
    EngineUnavailableError,
    QueueFullError,
    TemplateError,
)

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
POST_PATHS = (
    CHAT,
    MESSAGES,
    f"{MESSAGES}/count_tokens",
    COMPLETIONS,
    RESPONSES,
    "/tokenize",
    "/detokenize",
)
BODY = {"messages": [{"role": "user", "content": "Hello"}]}

ASK = {**BODY, "prompt": "Hello", "input": "Hello", "tokens": [1]}


def strict(response):
    """The body, which must be JSON that any parser reads."""

    def refuse(name):
        raise AssertionError(f"{name} in a body")

    assert response.headers["content-type"] == "application/json"
    return json.loads(response.content, parse_constant=refuse)


class TestBodies:
    @pytest.mark.parametrize("path", POST_PATHS)
    @pytest.mark.parametrize(
        "raw",
        [
            b"{nope",
            b"",
            b"[1,2]",
            b'{"messages": NaN}',
            b'{"a": "\xff"}',
            b'{"a": "\\ud800"}',
            b'{"a":' * 5000,
            b"[" * 100_000 + b"]" * 100_000,
        ],
    )
    async def test_what_is_no_json_object_is_400(self, client, path, raw):
        response = await client.post(path, content=raw)
        assert response.status_code == 400
        body = strict(response)
        assert body["detail"] == body["error"]["message"]
        assert body["error"]["type"] == "invalid_request_error"
        assert (await client.post(CHAT, json=BODY)).status_code == 200

    @pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
    async def test_content_type_does_not_matter(self, client, kind):
        headers = {"content-type": kind} if kind else {}
        response = await client.post(CHAT, content=json.dumps(BODY).encode(), headers=headers)
        assert response.status_code == 200

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    async def test_no_object_makes_it_fail(self, client, data):
        leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
        leaves |= st.floats(allow_nan=False, allow_infinity=False)
        anything = st.recursive(
            leaves,
            lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
            max_leaves=8,
        )
        names = [
            "messages",
            "model",
            "temperature",
            "top_p",
            "max_tokens",
            "stop",
            "stop_sequences",
            "stream",
            "n",
            "seed",
            "tools",
            "tool_choice",
            "system",
            "logit_bias",
            "logprobs",
            "response_format",
            "stream_options",
            "thinking",
            "prompt",
            "echo",
            "input",
            "instructions",
            "text",
            "tokens",
            "content",
        ]
        fields = data.draw(st.dictionaries(st.sampled_from(names), anything, max_size=4))
        for path in POST_PATHS:
            for body in (fields, {**ASK, **fields}):
                response = await client.post(path, json=body)
                assert response.status_code < 500, response.text
                if response.status_code != 200:
                    assert strict(response)["error"]["message"]


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "status", "openai", "anthropic"),
        [
            (TemplateError("No template."), 400, "invalid_request_error", "invalid_request_error"),
            (QueueFullError("Full.", retry_after=2.5), 429, "rate_limit_error", "rate_limit_error"),
            (DeadlineExceededError("Late."), 503, "service_unavailable_error", "api_error"),
            (EngineUnavailableError("Gone."), 503, "service_unavailable_error", "api_error"),
            (RecursionError("Deep."), 400, "invalid_request_error", "invalid_request_error"),
            (AstraiError("Odd."), 500, "server_error", "api_error"),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_engine_refusals(self, connect, error, status, openai, anthropic, stream):
        client = connect(FakeEngine.scripted(Reply(refuse=error), Reply(refuse=error)))
        for path, kind in ((CHAT, openai), (MESSAGES, anthropic)):
            response = await client.post(path, json={**BODY, "stream": stream})
            assert response.status_code == status
            body = strict(response)
            assert body["error"]["type"] == kind
            assert body["error"]["message"] == body["detail"]
            assert body["detail"] == str(error) or isinstance(error, RecursionError)
            assert ("retry-after" in response.headers) == (status in (429, 503))

    async def test_retry_after_is_whole_seconds(self, connect):
        engine = FakeEngine.scripted(Reply(refuse=QueueFullError("Full.", retry_after=2.5)))
        response = await connect(engine).post(CHAT, json=BODY)
        assert response.headers["retry-after"] == "3"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_deadline_before_the_first_token_is_503(self, connect, stream):
        engine = FakeEngine.scripted(Reply(DeadlineExceededError("Took too long.")))
        response = await connect(engine).post(CHAT, json={**BODY, "stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"

    @pytest.mark.parametrize("path", [CHAT, MESSAGES])
    async def test_unexpected_exception_tells_nothing(self, connect, caplog, path):
        engine = FakeEngine.scripted(Reply(refuse=RuntimeError("secret of /home/me")))
        response = await connect(engine).post(path, json=BODY)
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "secret" in caplog.text
        assert response.headers["x-request-id"] in caplog.text

    async def test_shapes(self, client):
        openai = strict(await client.post(CHAT, json={}))
        assert set(openai) == {"error", "detail"}
        assert set(openai["error"]) == {"message", "type", "param", "code"}
        anthropic = strict(await client.post(MESSAGES, json={}))
        assert set(anthropic) == {"type", "error", "request_id", "detail"}
        assert openai["detail"] == [
            {"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}
        ]

    @pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1/embeddings"])
    async def test_unknown_path(self, client, path):
        response = await client.get(path)
        assert response.status_code == 404
        assert strict(response)["error"]["type"] == "not_found_error"

    async def test_wrong_method(self, client):
        response = await client.get(CHAT)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
        assert strict(response)["error"]["message"]

    async def test_head_probe_of_the_root(self, client):
        assert (await client.head("/")).status_code == 200


class TestModels:
    @pytest.mark.parametrize("path", [CHAT, MESSAGES])
    async def test_unknown_name_is_404_with_the_known_ones(self, client, engine, path):
        """B141."""
        response = await client.post(path, json={**BODY, "model": "nope"})
        assert response.status_code == 404
        error = strict(response)["error"]
        assert error["type"] == "not_found_error"
        assert error["message"] == (
            "The model `nope` does not exist. This server has: `fake-model`, `astrai`."
        )
        assert engine.requests == []

    async def test_code_and_param(self, client):
        error = strict(await client.post(CHAT, json={**BODY, "model": "nope"}))["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")

    @pytest.mark.parametrize("name", ["fake-model", "astrai"])
    @pytest.mark.parametrize("path", [CHAT, MESSAGES])
    async def test_answer_echoes_the_name_asked_for(self, client, path, name):
        response = await client.post(path, json={**BODY, "model": name})
        assert response.json()["model"] == name

    async def test_configured_names_replace_the_models_own(self, connect):
        client = connect(served_model_name=("one", "two"))
        listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        assert listed == ["one", "two", "astrai"]
        assert (await client.post(CHAT, json={**BODY, "model": "two"})).status_code == 200
        assert (await client.post(CHAT, json={**BODY, "model": "fake-model"})).status_code == 404

    async def test_star_accepts_any_name(self, connect):
        """B141."""
        client = connect(served_model_name=("*",))
        response = await client.post(CHAT, json={**BODY, "model": "gpt-5"})
        assert response.json()["model"] == "gpt-5"
        assert (await client.get("/v1/models/gpt-5")).status_code == 404

    async def test_list(self, client):
        body = (await client.get("/v1/models?limit=1000")).json()
        assert body["object"] == "list"
        assert body["has_more"] is False
        assert (body["first_id"], body["last_id"]) == ("fake-model", "astrai")
        model = body["data"][0]
        assert isinstance(model.pop("created"), int)
        assert model.pop("created_at").endswith("Z")
        assert model == {
            "id": "fake-model",
            "object": "model",
            "owned_by": "astrai",
            "max_model_len": 4096,
            "type": "model",
            "display_name": "fake-model",
            "lifecycle": "active",
            "max_input_tokens": 4096,
            "max_tokens": 4096,
        }

    async def test_one(self, connect):
        client = connect(FakeEngine(name="org/model"))
        listed = (await client.get("/v1/models")).json()["data"][0]
        assert (await client.get("/v1/models/org/model")).json() == listed
        response = await client.get("/v1/models/nope")
        assert response.status_code == 404
        assert "nope" in response.json()["error"]["message"]


class TestPaths:
    @pytest.mark.parametrize("path", ["/v1//models", "//v1/models", "/v1/models/"])
    async def test_extra_slashes(self, client, path):
        """B144."""
        assert (await client.get(f"http://test{path}")).status_code == 200

    async def test_extra_slashes_in_front_of_a_route(self, client):
        """B144."""
        assert (await client.post("http://test//v1//messages/", json=BODY)).status_code == 200


class TestRequestIds:
    async def test_every_answer_has_one(self, client):
        for response in (
            await client.get("/health"),
            await client.get("/nothing"),
            await client.post(CHAT, json=BODY),
            await client.post(CHAT, json={**BODY, "stream": True}),
            await client.post(CHAT, content=b"{"),
        ):
            assert response.headers["x-request-id"].startswith("req_")
            assert response.headers["request-id"] == response.headers["x-request-id"]

    async def test_sane_one_is_echoed(self, client, engine):
        """B043."""
        response = await client.post(CHAT, json=BODY, headers={"X-Request-Id": "abc"})
        assert response.headers["x-request-id"] == response.headers["request-id"] == "abc"
        assert engine.requests[0].request_id == "abc"

    @pytest.mark.parametrize("sent", ["x" * 129, "", "a b", "ä".encode(), b"a\x7fb"])
    async def test_any_other_is_replaced(self, client, sent):
        """B043."""
        response = await client.get("/health", headers={"X-Request-Id": sent})
        assert response.headers["x-request-id"].startswith("req_")

    async def test_same_id_twice_is_two_requests(self, client, engine):
        """B042."""
        headers = {"X-Request-Id": "same"}
        for _ in range(2):
            assert (await client.post(CHAT, json=BODY, headers=headers)).status_code == 200
        assert len({handle.request_id for handle in engine.handles}) == 2


class TestLimits:
    async def test_declared_body_over_the_limit(self, connect, engine):
        client = connect(engine, max_body_bytes=100)
        response = await client.post(MESSAGES, content=b"x" * 101)
        assert response.status_code == 413
        assert strict(response)["error"]["type"] == "request_too_large"
        assert (await client.post(CHAT, json=BODY)).status_code == 200

    async def test_fifty_megabytes(self, client):
        for path in (CHAT, MESSAGES):
            response = await client.post(path, content=bytes(50 * 10**6))
            assert response.status_code == 413
        assert (await client.post(CHAT, json=BODY)).status_code == 200

    async def test_undeclared_body_over_the_limit(self, connect):
        async def endless():
            for _ in range(20):
                yield b"x" * 10

        response = await connect(max_body_bytes=100).post(CHAT, content=endless())
        assert response.status_code == 413
        assert "100 bytes" in strict(response)["error"]["message"]

    @pytest.mark.parametrize("size", [33 * 1024, 64 * 1024])
    async def test_headers_over_the_limit(self, client, size):
        """B163."""
        response = await client.get("/health", headers={"x-large": "x" * size})
        assert response.status_code == 431
        assert strict(response)["error"]["message"]

    async def test_content_length_of_absurd_length(self, client):
        headers = {"content-length": "9" * 5000}
        response = await client.post(CHAT, content=b"{}", headers=headers)
        assert response.status_code == 413


PREFLIGHT = {
    "origin": "http://localhost:3000",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-api-key,anthropic-version",
}


class TestCors:
    async def test_preflight_needs_no_key(self, connect):
        client = connect(cors_origins=("http://localhost:3000",), api_key=("k",))
        response = await client.options(CHAT, headers=PREFLIGHT)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "x-api-key" in response.headers["access-control-allow-headers"]

    async def test_errors_can_be_read_too(self, connect):
        client = connect(cors_origins=("*",), api_key=("k",))
        response = await client.get("/v1/models", headers={"origin": "http://a"})
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == "*"

    async def test_off_by_default(self, client):
        response = await client.get("/health", headers={"origin": "http://a"})
        assert "access-control-allow-origin" not in response.headers


class TestSystem:
    async def test_health_body_of_the_seed(self, client):
        assert (await client.get("/health")).json() == {"status": "ok", "model_loaded": True}
        assert (await client.get("/ready")).status_code == 200

    async def test_stats_keys_of_the_seed(self, client):
        stats = (await client.get("/stats")).json()
        assert {"total_tasks", "total_tokens", "active_tasks", "waiting_queue"} <= set(stats)

    async def test_lost_engine_is_503(self, connect):
        engine = FakeEngine(is_healthy=False)
        response = await connect(engine).get("/health")
        assert response.status_code == 503
        body = strict(response)
        assert (body["status"], body["model_loaded"]) == ("lost", False)
        assert response.headers["retry-after"] == "1"
        assert (await connect(engine).post(CHAT, json=BODY)).status_code == 503

    async def test_openapi_document(self, client):
        document = (await client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        temperature = schemas["ChatCompletionRequest"]["properties"]["temperature"]
        assert temperature["default"] == 1.0
        assert {"type": "null"} in temperature["anyOf"]
        assert {CHAT, MESSAGES, "/health", "/v1/models"} <= set(document["paths"])
