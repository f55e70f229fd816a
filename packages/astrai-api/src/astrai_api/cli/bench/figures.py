"""The rows of a comparison: what is shown of each run, and which direction is better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from astrai_api.cli.bench.summary import Summary


@dataclass(frozen=True)
class Figure:
    """A row.

    Attributes:
        label: with the unit.
        of: gives its value.
        better: which direction is; None is neither.
        digits: behind the point.
    """

    label: str
    of: Callable[[Summary], float]
    better: Literal["more", "less"] | None = None
    digits: int = 0

    def shown(self, summary: Summary) -> str:
        """The value of a run."""
        return f"{self.of(summary):,.{self.digits}f}"

    def change(self, summary: Summary, first: Summary) -> float | None:
        """By which share a run differs from the first; None where that says nothing."""
        base = self.of(first)
        if self.better is None or not base:
            return None
        return self.of(summary) / base - 1


def _latencies(name: str, of: Callable[[Summary], Sequence[float]]) -> list[Figure]:
    shown = ("mean", "median", "p90", "p99")

    def pick(place: int) -> Callable[[Summary], float]:
        return lambda summary: 1000 * of(summary)[place]

    return [
        Figure(f"{name}, {what} (ms)", pick(place), "less", 1) for place, what in enumerate(shown)
    ]


FIGURES = [
    Figure("answered requests", lambda s: s.completed),
    Figure("failed requests", lambda s: s.failed, "less"),
    Figure("time (s)", lambda s: s.seconds, None, 1),
    Figure("prompt tokens, mean", lambda s: s.prompt_tokens),
    Figure("prompt tokens in the server's cache (%)", lambda s: 100 * s.cached_share),
    Figure("output tokens, mean", lambda s: s.output_tokens),
    Figure("requests/s", lambda s: s.requests_per_second, "more", 2),
    Figure("output tokens/s", lambda s: s.output_tokens_per_second, "more", 1),
    *_latencies(
        "time to first text", lambda s: (s.first.mean, s.first.p50, s.first.p90, s.first.p99)
    ),
    *_latencies(
        "time per token after it",
        lambda s: (s.per_token.mean, s.per_token.p50, s.per_token.p90, s.per_token.p99),
    ),
    *_latencies("gap between pieces", lambda s: (s.gap.mean, s.gap.p50, s.gap.p90, s.gap.p99)),
    *_latencies("whole answer", lambda s: (s.total.mean, s.total.p50, s.total.p90, s.total.p99)),
]
"""Every row, for any run."""

GOODPUT = [
    Figure("within the limits (%)", lambda s: 100 * s.good_share, "more", 1),
    Figure("goodput (requests/s)", lambda s: s.goodput, "more", 2),
]
"""Rows for runs that had limits."""


def figures_of(*, has_limits: bool) -> list[Figure]:
    """The rows to show."""
    return FIGURES + GOODPUT if has_limits else FIGURES
