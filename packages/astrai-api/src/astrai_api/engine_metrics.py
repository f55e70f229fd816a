"""What the engine counts, as Prometheus gets it: one row a metric."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astrai_engine.events import FinishReason

PREFIX = "astrai:"

Values = float | Mapping[str, float]

_FINISHED_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.ABORTED: "abort",
    FinishReason.ERROR: "error",
}


@dataclass(frozen=True)
class EngineMetric:
    """One metric that comes from the engine's statistics.

    Attributes:
        kind: whether it only grows.
        name: without the prefix, and without the ``_total`` that Prometheus appends to counters.
        documentation: one sentence.
        read: takes the value out of the statistics, or several by the value of ``label``. It
            raises ``KeyError`` for an engine that does not count this.
        label: what tells several values apart.
    """

    kind: Literal["gauge", "counter"]
    name: str
    documentation: str
    read: Callable[[Mapping[str, Any]], Values]
    label: str = ""

    def collect(self, labels: Mapping[str, str], stats: Mapping[str, Any]) -> Metric:
        """The metric as the statistics have it; without samples if they have not."""
        family = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        own = [self.label] if self.label else []
        metric = family(PREFIX + self.name, self.documentation, labels=[*labels, *own])
        try:
            values = self.read(stats)
        except KeyError:
            return metric
        several = values if isinstance(values, Mapping) else {"": values}
        for value_of_label, value in several.items():
            metric.add_metric([*labels.values(), *([value_of_label] if own else [])], value)
        return metric


def collect_engine_metrics(labels: Mapping[str, str], stats: Mapping[str, Any]) -> Iterator[Metric]:
    """All metrics of the engine, with the labels given."""
    for metric in ENGINE_METRICS:
        yield metric.collect(labels, stats)


def _finished(stats: Mapping[str, Any]) -> Values:
    return {_FINISHED_REASONS[FinishReason(r)]: n for r, n in stats["finished"].items()}


def _pages(stats: Mapping[str, Any]) -> Values:
    return {state: stats["pages"][state] for state in ("free", "cached", "in_use")}


ENGINE_METRICS = (
    EngineMetric(
        "gauge", "num_requests_running", "Choices being generated.", lambda s: s["active_tasks"]
    ),
    EngineMetric(
        "gauge", "num_requests_waiting", "Choices waiting to start.", lambda s: s["waiting_queue"]
    ),
    EngineMetric(
        "gauge",
        "kv_cache_usage_perc",
        "Part of the K/V pages in use, from 0 to 1.",
        lambda s: s["pages"]["in_use"] / s["pages"]["total"],
    ),
    EngineMetric("gauge", "kv_cache_pages", "K/V pages by state.", _pages, "state"),
    EngineMetric(
        "gauge",
        "cache_tier_pages",
        "Pages kept outside the pool.",
        lambda s: {name: tier["pages"] for name, tier in s["tiers"].items()},
        "tier",
    ),
    EngineMetric(
        "gauge",
        "cache_tier_bytes",
        "Room that pages outside the pool take.",
        lambda s: {name: tier["bytes"] for name, tier in s["tiers"].items()},
        "tier",
    ),
    EngineMetric(
        "counter",
        "prompt_tokens",
        "Tokens of the prompts of ended choices.",
        lambda s: s["prompt_tokens"],
    ),
    EngineMetric("counter", "generation_tokens", "Tokens generated.", lambda s: s["total_tokens"]),
    EngineMetric("counter", "engine_steps", "Forward passes run.", lambda s: s["steps"]),
    EngineMetric(
        "counter", "prefix_cache_queries", "Prompt tokens looked up.", lambda s: s["prompt_tokens"]
    ),
    EngineMetric(
        "counter",
        "prefix_cache_hits",
        "Prompt tokens found in the cache.",
        lambda s: s["cached_tokens"],
    ),
    EngineMetric(
        "counter",
        "prefix_cache_evictions",
        "Cached pages given up to make room.",
        lambda s: s["pages"]["evictions"],
    ),
    EngineMetric(
        "counter",
        "prefix_cache_restores",
        "Pages that came back from a tier.",
        lambda s: s["pages"]["restores"],
    ),
    EngineMetric(
        "counter",
        "num_preemptions",
        "Choices set back for lack of pages.",
        lambda s: s["preemptions"],
    ),
    EngineMetric(
        "counter",
        "spec_decode_num_draft_tokens",
        "Guessed tokens checked.",
        lambda s: s["drafted_tokens"],
    ),
    EngineMetric(
        "counter",
        "spec_decode_num_accepted_tokens",
        "Of them right.",
        lambda s: s["accepted_tokens"],
    ),
    EngineMetric("counter", "request_success", "Choices that ended.", _finished, "finished_reason"),
)
