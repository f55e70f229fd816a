"""OpenTelemetry traces: a span for each request, with its queue, prefill and decode below it.

Needs the extra ``otel``, and is imported only where traces are wanted. Where spans go and how many
are kept is up to the standard ``OTEL_*`` variables, which the SDK reads. No text of a prompt or an
answer is in a span. Attributes follow the semantic conventions for HTTP and for generative AI.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.response_counter import route_path
from astrai_engine.events import Event, Failed, Finished, Timing
from astrai_engine.request import GenerationRequest

_FLUSH_SECONDS = 3.0

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def open_provider() -> TracerProvider:
    """The provider that the program has set up, or a new one that exports by OTLP over HTTP."""
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        return current
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "astrai"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # see `flushing`
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def flushing(lifespan: Lifespan, provider: TracerProvider) -> Lifespan:
    """A lifespan that exports what is left once the one given has ended.

    A collector that does not answer delays the end by some seconds only.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[None]:
        async with lifespan(app):
            yield
        flush = threading.Thread(target=provider.force_flush, daemon=True)
        flush.start()
        await asyncio.to_thread(flush.join, _FLUSH_SECONDS)

    return run


class TracingMiddleware:
    """ASGI middleware that makes a span of each request below ``/v1``, and its context current.

    The span continues the trace of the caller's ``traceparent``, if there is one.

    Args:
        app: what serves the requests.
        provider: makes the spans.
    """

    def __init__(self, app: ASGIApp, provider: trace.TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("astrai_api", version("astrai-api"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app within a span."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        above = propagate.extract(dict(Headers(scope=scope)))
        span = self._tracer.start_span(
            scope["method"], above, trace.SpanKind.SERVER, _of_request(scope)
        )
        token = context.attach(trace.set_span_in_context(span, above))
        state = scope.setdefault("state", {})
        state["trace"] = GenerationTrace(self._tracer, span, scope["path"])
        ended = False

        async def watched_send(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                _note_response(span, scope, message["status"])
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            if not ended:
                span.set_status(trace.StatusCode.ERROR, "The client went away.")
            context.detach(token)
            span.end()


def _of_request(scope: Scope) -> dict[str, str]:
    return {
        "http.request.method": scope["method"],
        "url.path": scope["path"],
        "astrai.request_id": scope["state"]["request_id"],
    }


def _note_response(span: trace.Span, scope: Scope, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    route = route_path(scope)
    if route is not None:
        span.set_attribute("http.route", route)
        if not scope["state"]["trace"].is_planned:
            span.update_name(f"{scope['method']} {route}")
    if status >= 500:
        span.set_status(trace.StatusCode.ERROR)


class GenerationTrace:
    """What a request that generates adds to its span.

    Args:
        tracer: makes the spans below it.
        span: of the request.
        path: where it was sent.

    Attributes:
        is_planned: whether it generates, and came as far as that.
    """

    def __init__(self, tracer: trace.Tracer, span: trace.Span, path: str) -> None:
        self._tracer = tracer
        self._span = span
        self._operation = "text_completion" if path == "/v1/completions" else "chat"
        self.is_planned = False
        self._num_choices = 1
        self._reasons: list[str] = []
        self._input = self._cached = self._output = 0

    def planned(self, model: str, requests: Sequence[GenerationRequest]) -> None:
        """The request is about to run.

        Args:
            model: the name that the client used.
            requests: its generations, alike but for their prompts.
        """
        first = requests[0]
        self.is_planned = True
        self._num_choices = first.n
        self._span.update_name(f"{self._operation} {model}")
        asked: Mapping[str, Any] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": "astrai",
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": first.max_tokens,
            "gen_ai.request.temperature": first.temperature,
            "gen_ai.request.top_p": first.top_p,
            "gen_ai.request.top_k": first.top_k,
            "gen_ai.request.seed": first.seed,
            "gen_ai.request.frequency_penalty": first.frequency_penalty,
            "gen_ai.request.presence_penalty": first.presence_penalty,
            "gen_ai.request.choice.count": first.n * len(requests),
            "gen_ai.request.stream": first.stream,
        }
        self._span.set_attributes({k: v for k, v in asked.items() if v is not None})

    def observe(self, event: Event) -> None:
        """Note the end of a choice; other events cost nothing."""
        if isinstance(event, Finished):
            self._end(event.index, event.timing, event.reason.value)
            if event.index % self._num_choices == 0:
                self._input += event.usage.prompt_tokens
                self._cached += event.usage.cached_tokens
            self._output += event.usage.completion_tokens
            self._span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": self._input,
                    "gen_ai.usage.cache_read.input_tokens": self._cached,
                    "gen_ai.usage.output_tokens": self._output,
                }
            )
        elif isinstance(event, Failed):
            self._end(event.index, event.timing, "error")
            self._span.set_attribute("error.type", type(event.error).__name__)
            self._span.set_status(trace.StatusCode.ERROR, str(event.error))

    def _end(self, index: int, timing: Timing | None, reason: str) -> None:
        self._reasons.append(reason)
        self._span.set_attribute("gen_ai.response.finish_reasons", self._reasons)
        if timing is None:
            return
        # The engine's clock counts from anywhere; spans count from 1970.
        shift = time.time() - time.monotonic()
        above = trace.set_span_in_context(self._span)
        for name, start, end in _phases(timing):
            span = self._tracer.start_span(
                name, above, attributes={"astrai.choice": index}, start_time=_ns(start + shift)
            )
            span.end(_ns(end + shift))


def _phases(timing: Timing) -> list[tuple[str, float, float]]:
    """Name, start and end of the phases that a choice went through."""
    ended = timing.ended_at
    starts = {
        "queue": timing.submitted_at,
        "prefill": timing.started_at,
        "decode": timing.first_token_at,
    }
    reached = [(name, start) for name, start in starts.items() if start is not None]
    ends = [start for _, start in reached[1:]] + [ended]
    return [(name, start, end) for (name, start), end in zip(reached, ends, strict=True)]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
