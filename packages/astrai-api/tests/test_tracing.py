"""Spans of requests: what they are called, what they tell, and what they never do."""

import logging
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from astrai_api import tracing
from astrai_api.application import create_app
from astrai_api.logs import JsonFormatter
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.errors import ConfigurationError, GenerationError
from astrai_engine.events import Failed, Finished, FinishReason, Timing, Usage

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "a secret"}], "temperature": 0.5, "max_tokens": 9}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def ask(connect, provider, exporter):
    """Send one request; gives the response and the spans that ended."""

    async def send(*script, path=CHAT, body=BODY, headers=(), **reply):
        engine = FakeEngine.scripted(*([Reply(*script, **reply)] if script or reply else []))
        app = create_app(engine=engine, settings=Settings(), tracer_provider=provider)
        response = await connect(app=app).post(path, json=body, headers=dict(headers))
        return response, exporter.get_finished_spans()

    return send


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_has_a_span_and_its_phases_below_it(ask, stream):
    timing = Timing(10.0, 10.25, 11.0, 13.0)
    end = Finished(FinishReason.STOP, Usage(7, 4, 5), stop=None, timing=timing)
    response, spans = await ask(end, body={**BODY, "stream": stream, "model": "astrai"})
    *phases, root = spans
    assert (root.name, root.kind) == ("chat astrai", SpanKind.SERVER)
    assert root.attributes == {
        "http.request.method": "POST",
        "url.path": CHAT,
        "http.route": CHAT,
        "http.response.status_code": 200,
        "astrai.request_id": response.headers["x-request-id"],
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "astrai",
        "gen_ai.request.model": "astrai",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 50,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.stream": stream,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert root.status.status_code is StatusCode.UNSET
    assert [(p.name, p.parent.span_id) for p in phases] == [
        (name, root.context.span_id) for name in ("queue", "prefill", "decode")
    ]
    seconds = [(p.end_time - p.start_time) / 1e9 for p in phases]
    assert seconds == pytest.approx([0.25, 0.75, 2.0], abs=1e-5)


async def test_no_text_is_in_a_span(ask):
    _, spans = await ask("the answer", prompt_end="a secret")
    for span in spans:
        assert "secret" not in span.to_json()
        assert "the answer" not in span.to_json()


async def test_the_callers_trace_goes_on(ask):
    _, spans = await ask(headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert f"{spans[-1].parent.span_id:016x}" == CALLER


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{CALLER}-01"])
async def test_a_bad_traceparent_begins_a_new_trace(ask, header):
    response, spans = await ask(headers={"traceparent": header})
    assert response.status_code == 200
    assert spans[-1].parent is None


async def test_a_caller_that_is_not_sampled_makes_no_spans(ask):
    response, spans = await ask(headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
    assert (response.status_code, spans) == (200, ())


async def test_choices_and_prompts_are_counted_once(ask):
    body = {"prompt": ["one two", "three"], "n": 2, "max_tokens": 1}
    _, spans = await ask(path="/v1/completions", body=body)
    root = spans[-1].attributes
    assert spans[-1].name == "text_completion astrai"
    assert root["gen_ai.usage.input_tokens"] == 3
    assert root["gen_ai.usage.output_tokens"] == 4
    assert root["gen_ai.request.choice.count"] == 4
    assert sorted(s.attributes["astrai.choice"] for s in spans if s.name == "decode") == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_an_error_with_the_phases_it_reached(ask, stream):
    failed = Failed(GenerationError("no"), timing=Timing(1.0, None, None, 2.0))
    _, spans = await ask(failed, body={**BODY, "stream": stream})
    (queue, root) = spans
    assert queue.name == "queue"
    assert root.attributes["error.type"] == "GenerationError"
    assert root.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert root.status.status_code is StatusCode.ERROR


async def test_a_refusal_is_a_span_without_a_generation(ask):
    response, (span,) = await ask(body={"messages": []})
    assert response.status_code == span.attributes["http.response.status_code"] == 400
    assert span.name == f"POST {CHAT}"
    assert span.status.status_code is StatusCode.UNSET


async def test_a_client_that_goes_away(exporter, provider):
    app = create_app(
        engine=FakeEngine.scripted(Reply("a", Gate())),
        settings=Settings(),
        tracer_provider=provider,
    )
    messages = [{"type": "http.request", "body": b'{"prompt": "x", "stream": true}'}]
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"",
        "query_string": b"", "headers": [],
    }  # fmt: skip
    await app(scope, receive, send)
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "The client went away.",
    )


async def test_only_the_api_is_traced(connect, provider, exporter):
    app = create_app(engine=FakeEngine(), settings=Settings(), tracer_provider=provider)
    client = connect(app=app)
    for path in ("/health", "/metrics", "/stats"):
        await client.get(path)
    assert exporter.get_finished_spans() == ()
    await client.get("/v1/models/astrai")
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET /v1/models/{name:path}"


async def test_log_lines_have_the_trace(ask, monkeypatch):
    lines = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(JsonFormatter().format(record))

    handler = Handler()
    logging.getLogger("astrai_api").addHandler(handler)
    try:
        await ask(RuntimeError, refuse=RuntimeError("a bug"))
    finally:
        logging.getLogger("astrai_api").removeHandler(handler)
    assert '"trace_id": "' in lines[0]
    assert '"request_id": "req_' in lines[0]


async def test_the_last_spans_are_exported_when_the_server_stops(provider, monkeypatch):
    flushed = []
    monkeypatch.setattr(provider, "force_flush", lambda: flushed.append(True))
    app = create_app(engine=FakeEngine(), settings=Settings(), tracer_provider=provider)
    async with app.router.lifespan_context(app):
        assert not flushed
    assert flushed


async def test_a_collector_that_does_not_answer_does_not_keep_the_server(provider, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(provider, "force_flush", answers.wait)
    monkeypatch.setattr(tracing, "_FLUSH_SECONDS", 0.0)
    app = create_app(engine=FakeEngine(), settings=Settings(), tracer_provider=provider)
    async with app.router.lifespan_context(app):
        pass
    answers.set()


def test_the_setting_uses_what_the_program_has_set_up(monkeypatch, provider):
    monkeypatch.setattr(tracing.trace, "get_tracer_provider", lambda: provider)
    assert tracing.open_provider() is provider


@pytest.mark.parametrize(("name", "expected"), [("", "astrai"), ("mine", "mine")])
def test_else_it_exports_under_a_name_of_its_own(monkeypatch, name, expected):
    monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    opened = tracing.open_provider()
    assert opened.resource.attributes[SERVICE_NAME] == expected
    opened.shutdown()


def test_without_the_extra_the_setting_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "astrai_api.tracing", None)
    monkeypatch.delattr("astrai_api.tracing")
    with pytest.raises(ConfigurationError, match=r"astrai-api\[otel\]"):
        create_app(engine=FakeEngine(), settings=Settings(traces=True))


def test_when_off_the_sdk_is_not_even_imported():
    code = (
        "import sys; from astrai_api import create_app; from astrai_api.testing import FakeEngine;"
        "create_app(engine=FakeEngine()); assert 'opentelemetry.sdk' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
