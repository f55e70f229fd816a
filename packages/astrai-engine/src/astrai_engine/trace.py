"""A record of what ran in each step and how long its parts took."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        started_at: seconds on the clock of ``time.perf_counter``.
        phases: seconds of each part, in the order they ran: schedule, bind, forward, sample,
            commit (with detokenisation), emit.
        num_decoding: sequences that decoded.
        num_prompt_tokens: prompt tokens that ran.
        num_drafted: guessed tokens that ran.
        num_running: sequences that held pages.
        num_waiting: sequences that waited.
        num_free_pages: pages that held nothing.
        num_cached_pages: pages that held a reusable prefix and no task.
    """

    started_at: float
    phases: Mapping[str, float]
    num_decoding: int
    num_prompt_tokens: int
    num_drafted: int
    num_running: int
    num_waiting: int
    num_free_pages: int
    num_cached_pages: int


class StepTrace:
    """The last steps of an engine.

    Args:
        max_steps: how many are kept; older ones are dropped.
    """

    def __init__(self, max_steps: int = 10_000) -> None:
        self._records: deque[StepRecord] = deque(maxlen=max_steps)

    @property
    def records(self) -> list[StepRecord]:
        """The steps, oldest first."""
        return list(self._records)

    def add(self, record: StepRecord) -> None:
        """Keep a step."""
        self._records.append(record)

    def to_chrome(self) -> dict[str, Any]:
        """The trace in Chrome's trace event format, for chrome://tracing or Perfetto.

        Source: the Trace Event Format document; times are in microseconds.
        """
        return {"traceEvents": [event for r in self._records for event in _events(r)]}

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_chrome` as a JSON file."""
        Path(path).write_text(json.dumps(self.to_chrome()))


def _events(record: StepRecord) -> list[dict[str, Any]]:
    start = record.started_at * 1e6
    thread = {"pid": 1, "tid": 1}
    batch = {
        "decoding": record.num_decoding,
        "prompt_tokens": record.num_prompt_tokens,
        "drafted": record.num_drafted,
    }
    total = sum(record.phases.values()) * 1e6
    step = {"name": "step", "ph": "X", "ts": start, "dur": total, "args": batch, **thread}
    events: list[dict[str, Any]] = [step]
    at = start
    for name, seconds in record.phases.items():
        events.append({"name": name, "ph": "X", "ts": at, "dur": seconds * 1e6, **thread})
        at += seconds * 1e6
    requests = {"running": record.num_running, "waiting": record.num_waiting}
    pages = {"free": record.num_free_pages, "cached": record.num_cached_pages}
    for name, values in (("requests", requests), ("pages", pages)):
        events.append({"name": name, "ph": "C", "ts": start, "args": values, **thread})
    return events
