"""The figures of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from astrai_api.cli.bench.records import BenchRun


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in figures; all 0 where there are none."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Distribution":
        """The distribution of those that are there."""
        found = sorted(value for value in values if value is not None)
        if not found:
            return cls()
        mean, last = sum(found) / len(found), found[-1]
        p50, p90, p95, p99 = (percentile(found, share) for share in (0.5, 0.9, 0.95, 0.99))
        return cls(mean, p50, p90, p95, p99, last)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, linear between neighbours.

    Args:
        ordered: at least one value, smallest first.
        share: between 0 and 1.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said of a run. Latencies are seconds, of requests that did not fail.

    Attributes:
        completed: requests that were answered.
        failed: the others.
        seconds: the run took.
        requests_per_second: answered.
        output_tokens_per_second: over all requests.
        prompt_tokens: on average.
        output_tokens: on average.
        cached_share: of all prompt tokens.
        first: to the first text.
        gap: between pieces of text, over all requests.
        per_token: a request's mean time per token after the first.
        total: to the end.
        good_share: of all requests: answered within the limits.
        goodput: such requests a second.
    """

    completed: int
    failed: int
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float
    first: Distribution
    gap: Distribution
    per_token: Distribution
    total: Distribution
    good_share: float
    goodput: float


def summarise(run: BenchRun) -> Summary:
    """The figures of a run."""
    answered = [record for record in run.requests if record.error is None]
    count = max(len(answered), 1)
    seconds = max(run.seconds, 1e-9)
    prompt = sum(record.prompt_tokens for record in answered)
    output = sum(record.output_tokens for record in answered)
    good = sum(run.limits.are_met_by(record) for record in run.requests)
    return Summary(
        completed=len(answered),
        failed=len(run.requests) - len(answered),
        seconds=run.seconds,
        requests_per_second=len(answered) / seconds,
        output_tokens_per_second=output / seconds,
        prompt_tokens=prompt / count,
        output_tokens=output / count,
        cached_share=sum(record.cached_tokens for record in answered) / max(prompt, 1),
        first=Distribution.of(record.first for record in answered),
        gap=Distribution.of(gap for record in answered for gap in record.gaps),
        per_token=Distribution.of(record.per_token for record in answered),
        total=Distribution.of(record.total for record in answered),
        good_share=good / max(len(run.requests), 1),
        goodput=good / seconds,
    )
