"""How many replicas are wanted, by what their engines have to do."""

from collections.abc import Mapping
from typing import Any

LOAD = "choices"
"""The statistic of a replica that counts: choices that run or wait in its engine."""


def load_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """What a replica tells of itself, from the statistics of its engine."""
    return {LOAD: stats["active_tasks"] + stats["waiting_queue"]}


def by_queue_length(context: Any) -> tuple[float, dict[str, Any]]:
    """A policy for Ray Serve: enough replicas for each to have its target of choices.

    A request for four choices counts four times, one that waits for a replica once. Delays, bounds
    and factors are Serve's business.

    Args:
        context: Serve's ``AutoscalingContext``.

    Returns:
        The number of replicas wanted, and nothing to keep in mind.
    """
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    waiting = context.total_queued_requests or 0
    return (sum(loads.values()) + waiting) / context.config.get_target_ongoing_requests(), {}
