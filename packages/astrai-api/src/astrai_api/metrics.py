"""Prometheus metrics: the engine's counters as it gives them, and latencies measured here.

Names are vLLM's with the prefix ``astrai:``, so dashboards made for it need one replacement.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from astrai_engine.events import Event, Finished, FinishReason, TokenDelta

PREFIX = "astrai:"

_GAUGES: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "num_requests_running": ("Choices being generated.", lambda s: s["active_tasks"]),
    "num_requests_waiting": ("Choices waiting to start.", lambda s: s["waiting_queue"]),
    "kv_cache_usage_perc": (
        "Part of the K/V pages in use, from 0 to 1.",
        lambda s: s["pages"]["in_use"] / s["pages"]["total"],
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "prompt_tokens": ("Tokens of the prompts of ended choices.", lambda s: s["prompt_tokens"]),
    "generation_tokens": ("Tokens generated.", lambda s: s["total_tokens"]),
    "prefix_cache_queries": ("Prompt tokens looked up.", lambda s: s["prompt_tokens"]),
    "prefix_cache_hits": ("Prompt tokens found in the cache.", lambda s: s["cached_tokens"]),
    "num_preemptions": ("Choices set back for lack of pages.", lambda s: s["preemptions"]),
    "spec_decode_num_draft_tokens": ("Guessed tokens checked.", lambda s: s["drafted_tokens"]),
    "spec_decode_num_accepted_tokens": ("Of them right.", lambda s: s["accepted_tokens"]),
}
_FINISHED_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.ABORTED: "abort",
    FinishReason.ERROR: "error",
}
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class Histogram:
    """Counts observations by size. Written and read on the event loop alone, so without a lock.

    Args:
        name: without the prefix.
        documentation: one sentence.
        bounds: upper bounds of the buckets, ascending, in seconds.
    """

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self, labels: dict[str, str]) -> Metric:
        """The state now, with the labels given."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(
            PREFIX + self._name, self._documentation, labels=list(labels)
        )
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class ServerMetrics:
    """What one app measures, and the page that shows it with the engine's counters.

    Attributes:
        first_token: seconds from a request's arrival to the first token of each choice.
        next_token: seconds a token took after the one before.
        whole: seconds from a request's arrival to the end of each choice.
    """

    def __init__(self) -> None:
        self.first_token = Histogram(
            "time_to_first_token_seconds", "Time to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self.next_token = Histogram(
            "inter_token_latency_seconds", "Time from token to token.", _TOKEN_BUCKETS
        )
        self.whole = Histogram(
            "e2e_request_latency_seconds", "Time from arrival to the end.", _REQUEST_BUCKETS
        )

    def observer(self) -> Callable[[Event], None]:
        """What a request that arrives now tells of its events."""
        return _RequestLatencies(self).observe

    def page(self, accept: str, model_name: str, stats: Mapping[str, Any]) -> tuple[bytes, str]:
        """The body and its content type.

        Args:
            accept: the ``Accept`` header.
            model_name: for the label.
            stats: the engine's; what it lacks is left out.
        """
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(_Snapshot(self._families({"model_name": model_name}, stats)))
        return encode(registry), content_type

    def _families(self, labels: dict[str, str], stats: Mapping[str, Any]) -> Iterator[Metric]:
        names, values = list(labels), list(labels.values())
        for name, (documentation, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, documentation, labels=names)
            with suppress(KeyError):
                gauge.add_metric(values, read(stats))
            yield gauge
        for name, (documentation, read) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, documentation, labels=names)
            with suppress(KeyError):
                counter.add_metric(values, read(stats))
            yield counter
        success = CounterMetricFamily(
            PREFIX + "request_success", "Choices that ended.", labels=[*names, "finished_reason"]
        )
        for reason, count in stats.get("finished", {}).items():
            success.add_metric([*values, _FINISHED_REASONS[FinishReason(reason)]], count)
        yield success
        for histogram in (self.first_token, self.next_token, self.whole):
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
        if isinstance(event, TokenDelta):
            last = self._last.get(event.index)
            self._last[event.index] = now
            if last is None:
                self._metrics.first_token.observe(now - self._arrival)
            else:
                self._metrics.next_token.observe((now - last) / max(1, len(event.token_ids)))
        elif isinstance(event, Finished):
            self._metrics.whole.observe(now - self._arrival)
