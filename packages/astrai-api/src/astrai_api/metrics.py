"""Prometheus metrics: the engine's counters as it gives them, and what is measured here.

Names are vLLM's with the prefix ``astrai:``, so dashboards made for it need one replacement.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astrai_api.engine_metrics import PREFIX, collect_engine_metrics
from astrai_api.histogram import (
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    TOKENS,
    Histogram,
)
from astrai_engine.events import Event, Finished, FinishReason, Timing, TokenDelta

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the metrics page, whatever a scraper prefers.

As OpenMetrics, prometheus-client writes samples with ``_`` for the ``:`` of their names, so that no
dashboard would find them.
"""

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)


class ServerMetrics:
    """What one app measures, and the page that shows it with the engine's counters.

    Attributes:
        first_token: seconds from a request's arrival to the first token of each choice.
        next_token: seconds a token took after the one before.
        whole: seconds from a request's arrival to the end of each choice.
        queue: seconds that each choice waited to start.
        prefill: seconds from there to its first token.
        decode: seconds from there to its end.
        prompt_tokens: of each choice.
        generation_tokens: of each choice.
        responses: how many were sent, by the path of the route and the status.
    """

    def __init__(self) -> None:
        self.first_token = Histogram(
            f"{PREFIX}time_to_first_token_seconds", "Time to the first token.", FIRST_TOKEN_SECONDS
        )
        self.next_token = Histogram(
            f"{PREFIX}inter_token_latency_seconds", "Time from token to token.", TOKEN_SECONDS
        )
        self.whole = Histogram(
            f"{PREFIX}e2e_request_latency_seconds", "Time from arrival to the end.", REQUEST_SECONDS
        )
        self.queue = Histogram(
            f"{PREFIX}request_queue_time_seconds", "Time waiting to start.", REQUEST_SECONDS
        )
        self.prefill = Histogram(
            f"{PREFIX}request_prefill_time_seconds", "Time computing the prompt.", REQUEST_SECONDS
        )
        self.decode = Histogram(
            f"{PREFIX}request_decode_time_seconds", "Time generating the rest.", REQUEST_SECONDS
        )
        self.prompt_tokens = Histogram(
            f"{PREFIX}request_prompt_tokens", "Tokens of each prompt.", TOKENS
        )
        self.generation_tokens = Histogram(
            f"{PREFIX}request_generation_tokens", "Tokens generated for each choice.", TOKENS
        )
        self.responses: Counter[tuple[str, int]] = Counter()

    def observer(self) -> Callable[[Event], None]:
        """What a request that arrives now tells of its events."""
        return _RequestLatencies(self).observe

    def page(self, model_name: str, stats: Mapping[str, Any], *, ready: bool) -> bytes:
        """The text that Prometheus collects.

        Args:
            model_name: for the label.
            stats: the engine's; what it lacks is left out.
            ready: whether requests are served.
        """
        registry = CollectorRegistry()
        registry.register(_Snapshot(self._families({"model_name": model_name}, stats, ready)))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _families(
        self, labels: dict[str, str], stats: Mapping[str, Any], ready: bool
    ) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            f"{PREFIX}ready", "1 while requests are served.", labels=list(labels)
        )
        gauge.add_metric(list(labels.values()), ready)
        yield gauge
        yield from collect_engine_metrics(labels, stats)
        responses = CounterMetricFamily(
            f"{PREFIX}http_responses", "HTTP responses.", labels=[*labels, "path", "status"]
        )
        for (path, status), count in self.responses.items():
            responses.add_metric([*labels.values(), path, str(status)], count)
        yield responses
        for histogram in (
            self.first_token, self.next_token, self.whole, self.queue, self.prefill, self.decode,
            self.prompt_tokens, self.generation_tokens,
        ):  # fmt: skip
            yield histogram.collect(labels)


class _Snapshot:
    """Metrics as a registry takes them."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


class _RequestLatencies:
    """Times the choices of one request."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._arrival = monotonic()
        self._last: dict[int, float] = {}

    def observe(self, event: Event) -> None:
        now = monotonic()
        metrics = self._metrics
        if isinstance(event, TokenDelta):
            last = self._last.get(event.index)
            self._last[event.index] = now
            if last is None:
                metrics.first_token.observe(now - self._arrival)
            else:
                metrics.next_token.observe((now - last) / max(1, len(event.token_ids)))
        elif isinstance(event, Finished) and event.reason in _ANSWERED:
            metrics.whole.observe(now - self._arrival)
            metrics.prompt_tokens.observe(event.usage.prompt_tokens)
            metrics.generation_tokens.observe(event.usage.completion_tokens)
            if event.timing is not None:
                self._observe_phases(event.timing)

    def _observe_phases(self, timing: Timing) -> None:
        metrics = self._metrics
        if timing.started_at is not None:
            metrics.queue.observe(timing.started_at - timing.submitted_at)
            if timing.first_token_at is not None:
                metrics.prefill.observe(timing.first_token_at - timing.started_at)
                metrics.decode.observe(timing.ended_at - timing.first_token_at)
