"""The error table of the documents is that of the code."""

import re
from pathlib import Path

import pytest

from astrai_api.application import create_app
from astrai_api.documentation import text_responses, write_responses
from astrai_api.replicas.front import REPLICA_HEADER, ReplicaLostError, front_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Reply
from astrai_engine import errors as engine_errors

PACKAGE = Path(__file__).parents[1]
DOCUMENT = PACKAGE.parents[1] / "docs/reference/http-api.md"
ROW = re.compile(r"^\| ([^|]+) \| (\d{3}) \| (?:`(\w+)`)? ?\| `(\w+)` \| `(\w+)` \|$", re.MULTILINE)
BODY = {"messages": [{"role": "user", "content": "Hello"}]}

pytestmark = pytest.mark.skipif(
    not DOCUMENT.exists(), reason="the documents are not part of this copy of the package"
)


def rows():
    table = DOCUMENT.read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    return {case: (int(status), code, *kinds) for case, status, code, *kinds in ROW.findall(table)}


def raised(error):
    async def provoke(connect, path):
        engine = FakeEngine.scripted(Reply(refuse=error))
        return await connect(engine).post(path, json=BODY)

    return provoke


def sent(method="POST", suffix="", settings=None, **request):
    async def provoke(connect, path):
        client = connect(**(settings or {}))
        return await client.request(method, path + suffix, **request)

    return provoke


async def draining(connect, path):
    app = create_app(engine=FakeEngine(), settings=Settings())
    app.state.serving.host.drain()
    return await connect(app=app).post(path, json=BODY)


async def loading(connect, path):
    return await connect(app=create_app(settings=Settings())).post(path, json=BODY)


async def lost(connect, path):
    return await connect(FakeEngine(is_healthy=False)).post(path, json=BODY)


class NoReplicas:
    """A pool whose replicas are all gone."""

    def names(self):
        return []

    async def answer(self, request):
        raise ReplicaLostError(request.replica)
        yield []


def behind_a_front(headers):
    async def provoke(connect, path):
        client = connect(app=front_app(NoReplicas(), Settings()))
        return await client.post(path, json=BODY, headers=headers)

    return provoke


CASES = {
    "not a JSON object in UTF-8, NaN, nested too deeply": sent(content=b"[NaN]"),
    "well formed but impossible, or not supported": sent(json={**BODY, "messages": []}),
    "the chat template refuses the messages": raised(engine_errors.TemplateError("No.")),
    "the prompt is too long": raised(engine_errors.PromptTooLongError(9, 7, 8)),
    "no key, or a wrong one": sent(json=BODY, settings={"api_key": ("k",)}),
    "unknown model": sent(json={**BODY, "model": "nope"}),
    "several replicas, and none of the name in `x-astrai-replica`": behind_a_front(
        {REPLICA_HEADER: "r1"}
    ),
    "unknown path": sent(suffix="/x", json=BODY),
    "wrong method": sent("GET"),
    "the body is too large": sent(json=BODY, settings={"max_body_bytes": 1}),
    "a field is missing, of the wrong type or out of range": sent(json={}),
    "too many requests wait": raised(engine_errors.QueueFullError("Full.", retry_after=1)),
    "the headers are too large": sent(json=BODY, headers={"x": "x" * 33_000}),
    "the generation failed": raised(engine_errors.GenerationError("No.")),
    "a fault of the server": raised(ZeroDivisionError()),
    "the model is loading": loading,
    "the server is shutting down": draining,
    "the engine has stopped": lost,
    "the engine refuses while it stops": raised(engine_errors.EngineUnavailableError("Gone.")),
    "the replica that worked on it is gone": behind_a_front({}),
    "out of time before the first token": raised(engine_errors.DeadlineExceededError("Late.")),
}


def test_every_row_has_a_case():
    assert list(rows()) == list(CASES)


@pytest.mark.parametrize("case", CASES)
async def test_row(connect, case):
    status, code, openai_type, anthropic_type = rows()[case]
    openai = await CASES[case](connect, "/v1/chat/completions")
    anthropic = await CASES[case](connect, "/v1/messages")
    assert openai.status_code == anthropic.status_code == status
    assert openai.json()["error"]["type"] == openai_type
    assert openai.json()["error"]["code"] == (code or None)
    assert anthropic.json()["error"]["type"] == anthropic_type
    for response in (openai, anthropic):
        assert ("retry-after" in response.headers) == (status in (429, 503))


def test_every_code_of_the_source_is_in_it():
    source = "".join(p.read_text(encoding="utf-8") for p in PACKAGE.glob("src/**/*.py"))
    codes = set(re.findall(r'code="(\w+)"', source))
    codes |= set(re.findall(r'_unavailable\("[^"]+", "(\w+)"\)', source))
    assert codes == {code for _, code, *_ in rows().values() if code}


def test_statuses_of_the_openapi_document_are_in_it():
    statuses = {status for status, *_ in rows().values()}
    documented = [
        write_responses("/x", None, generates=True),
        write_responses("/v1/messages", None),
        text_responses(),
    ]
    for responses in documented:
        assert set(responses) - {200} <= statuses
