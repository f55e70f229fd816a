"""The front before replicas that run in this process."""

import asyncio
import json
from contextlib import aclosing

import httpx
import pytest

from astrai_api.application import create_app
from astrai_api.errors import ApiError
from astrai_api.replicas.forwarded import app_answer
from astrai_api.replicas.front import REPLICA_HEADER, ReplicaLostError, front_app
from astrai_api.replicas.prompt_blocks import prompt_blocks
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply

CHAT = {"messages": [{"role": "user", "content": "hello " * 50}]}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}


class Replicas:
    """Replicas by name, each with an engine; the first one gets what is not for a certain one."""

    def __init__(self, engines, **settings):
        self.settings = Settings(**settings)
        self.engines = engines
        self.apps = {
            name: create_app(engine=engine, settings=self.settings)
            for name, engine in engines.items()
        }
        self.requests = []
        self.lost = set()
        self.lose = Gate()
        self.refusal = None

    def names(self):
        return [name for name in self.apps if name not in self.lost]

    async def answer(self, request):
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        name = request.replica or next(iter(self.apps))
        if name in self.lost:
            raise ReplicaLostError(name)
        async with aclosing(app_answer(self.apps[name], request)) as answer:
            async for messages in answer:
                yield messages
                if self.lose.is_open:
                    raise ReplicaLostError(name)


@pytest.fixture
async def front():
    """``front(engine, ..., api_key=...)``: the replicas, and a client of the front before them."""
    clients = []

    def make(*engines, root_path="", **settings):
        pool = Replicas({f"r{i}": engine for i, engine in enumerate(engines)}, **settings)
        app = front_app(pool, pool.settings)
        transport = httpx.ASGITransport(app, root_path=root_path)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://test"))
        return pool, clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_answers_are_the_replicas(front, connect, path, stream):
    body = PATHS[path] | {"stream": stream}
    _, client = front(FakeEngine(default="Hi there"))
    through = await client.post(path, json=body)
    direct = await connect(FakeEngine(default="Hi there")).post(path, json=body)
    assert through.status_code == direct.status_code == 200
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.text.count("data:") == direct.text.count("data:")
    assert "there" in through.text


async def test_the_request_arrives_whole_with_the_blocks_of_its_prompt(front):
    pool, client = front(FakeEngine(), api_key="k")
    headers = {"authorization": "Bearer k", "x-request-id": "mine"}
    answer = await client.post("/v1//chat/completions/?a=b", json=CHAT, headers=headers)
    assert answer.status_code == 200
    (request,) = pool.requests
    assert json.loads(request.body) == CHAT
    assert request.scope["query_string"] == b"a=b"
    assert request.blocks == prompt_blocks("/v1/chat/completions", request.body)
    assert len(request.blocks) == 2
    assert answer.headers.get_list("x-request-id") == ["mine"]


async def test_tenants_share_no_blocks(front):
    pool, client = front(FakeEngine(), api_key="a,b")
    for key in "ab":
        await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": key})
    first, second = (request.blocks for request in pool.requests)
    assert not set(first) & set(second)


async def test_it_may_be_mounted_somewhere(front):
    _, client = front(FakeEngine(), root_path="/llm")
    assert (await client.get("/llm/v1/models")).status_code == 200
    assert (await client.get("/llm/health")).json()["status"] == "ok"


async def test_a_request_may_name_its_replica(front):
    pool, client = front(FakeEngine(), FakeEngine())
    headers = {REPLICA_HEADER: "r1"}
    assert (await client.get("/stats", headers=headers)).status_code == 200
    await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert [len(engine.handles) for engine in pool.engines.values()] == [0, 1]


async def test_a_replica_that_is_not_there_is_not_found(front):
    _, client = front(FakeEngine())
    answer = await client.get("/stats", headers={REPLICA_HEADER: "r9"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "replica_not_found"
    assert "'r9'" in answer.json()["error"]["message"]


async def test_errors_and_keys_are_the_replicas_business(front):
    _, client = front(FakeEngine(), api_key="k")
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 401
    headers = {"x-api-key": "k"}
    bad = await client.post("/v1/chat/completions", content=b"{", headers=headers)
    assert bad.status_code == 400
    assert "not valid JSON" in bad.json()["error"]["message"]


async def test_a_body_that_is_too_large_is_not_forwarded(front):
    pool, client = front(FakeEngine(), max_body_bytes=100)
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 413
    assert pool.requests == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_replica_lost_before_it_answers_is_a_503_to_try_again(front, path):
    pool, client = front(FakeEngine())
    pool.lost.add("r0")
    answer = await client.post(path, json=PATHS[path])
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "try again" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_replica_lost_midway_ends_the_stream_with_an_error(front, parse_sse, path):
    engine = FakeEngine.scripted(Reply("First", gate := Gate(), "never"))
    pool, client = front(engine)
    pool.lose.open()
    answer = await client.post(path, json=PATHS[path] | {"stream": True})
    assert not gate.is_open
    assert answer.status_code == 200
    events = [
        (name, json.loads(data)) for name, data in parse_sse(answer.content) if data != "[DONE]"
    ]
    name, data = events[-1]
    assert "try again" in data["error"]["message"]
    assert name == {"/v1/messages": "error", "/v1/responses": "error"}.get(path)


async def test_an_answer_that_is_cut_short_does_not_look_whole(front):
    pool, client = front(FakeEngine())

    async def answer(_request):
        yield [{"type": "http.response.start", "status": 200, "headers": []}]
        raise ReplicaLostError("r0")

    pool.answer = answer
    with pytest.raises(ReplicaLostError):
        await client.post("/v1/chat/completions", json=CHAT)


async def test_a_pool_may_refuse(front):
    pool, client = front(FakeEngine(), cors_origins="http://page")
    pool.refusal = ApiError(429, "All replicas are full.", code="queue_full", retry_after=2)
    headers = {"origin": "http://page"}
    answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["access-control-allow-origin"] == "http://page"


async def test_a_client_that_hangs_up_stops_its_request():
    engine = FakeEngine.scripted(Reply("First", Gate(), "never"))
    pool = Replicas({"r0": engine})
    incoming, sent = asyncio.Queue(), asyncio.Queue()
    body = json.dumps(CHAT | {"stream": True}).encode()
    incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [],
        "query_string": b"",
    }
    task = asyncio.ensure_future(front_app(pool, pool.settings)(scope, incoming.get, sent.put))
    await sent.get()
    incoming.put_nowait({"type": "http.disconnect"})
    await task
    assert not engine.handles[0].is_open


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_health_is_503_until_there_is_a_replica(front, path):
    pool, client = front(FakeEngine())
    assert (await client.get(path)).json() == {"status": "ok", "model_loaded": True}
    pool.lost.add("r0")
    answer = await client.get(path)
    assert answer.status_code == 503
    assert answer.json()["status"] == "loading"
    assert answer.json()["model_loaded"] is False


async def test_metrics_are_those_of_all_replicas(front):
    _, client = front(FakeEngine(), FakeEngine())
    await client.post("/v1/chat/completions", json=CHAT, headers={REPLICA_HEADER: "r1"})
    page = (await client.get("/metrics")).text
    ready = 'astrai:ready{model_name="fake-model",replica="%s"} 1.0'
    assert ready % "r0" in page
    assert ready % "r1" in page
    one = (await client.get("/metrics", headers={REPLICA_HEADER: "r1"})).text
    assert "replica=" not in one


async def test_metrics_need_the_key_that_replicas_want(front):
    _, client = front(FakeEngine(), api_key="k")
    assert (await client.get("/metrics")).status_code == 401


async def test_metrics_do_without_a_replica_that_goes_meanwhile(front):
    pool, client = front(FakeEngine(), FakeEngine())
    names = pool.names()
    pool.names = lambda: names
    pool.lost.add("r0")
    page = (await client.get("/metrics")).text
    assert 'replica="r1"' in page
    assert 'replica="r0"' not in page


async def test_the_lifespan_is_answered():
    pool = Replicas({})
    incoming, sent = asyncio.Queue(), asyncio.Queue()
    for event in ("startup", "shutdown"):
        incoming.put_nowait({"type": f"lifespan.{event}"})
    await front_app(pool, pool.settings)({"type": "lifespan"}, incoming.get, sent.put)
    assert [sent.get_nowait()["type"] for _ in range(2)] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
