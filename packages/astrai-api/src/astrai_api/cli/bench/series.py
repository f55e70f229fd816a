"""Lines of charts, out of the records of a run."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from astrai_api.cli.bench.records import BenchRun, RequestRecord

Points = list[tuple[float, float]]

_MOST_POINTS = 200
_BINS = 60


def shares(values: Iterable[float | None], *, up_to: float = 1.0) -> Points:
    """For each value, the per cent of all values up to it: steep is even, a long tail is not.

    Args:
        values: in any order.
        up_to: the share of the values that is shown; what is above would press the rest flat.
    """
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return []
    last = round((len(ordered) - 1) * up_to)
    count = min(last + 1, _MOST_POINTS)
    places = sorted({round(last * number / max(count - 1, 1)) for number in range(count)})
    return [(ordered[0], 0.0), *((ordered[i], 100 * (i + 1) / len(ordered)) for i in places)]


def token_rate(run: BenchRun) -> Points:
    """Output tokens a second over the time of the run."""
    width = (run.seconds or 1) / _BINS
    counts = [0.0] * _BINS
    for record in run.requests:
        stamps = _piece_times(record)
        for stamp in stamps:
            place = min(int(stamp / width), _BINS - 1)
            counts[place] += record.output_tokens / len(stamps)
    return [((number + 0.5) * width, count / width) for number, count in enumerate(counts)]


def _piece_times(record: RequestRecord) -> Sequence[float]:
    if record.first is None:
        return ()
    return list(accumulate(record.gaps, initial=record.due + record.first))


def open_requests(run: BenchRun) -> Points:
    """Requests that were sent and not yet answered, as steps over the time of the run."""
    changes = [(record.due, 1) for record in run.requests]
    changes += [(record.due + record.total, -1) for record in run.requests]
    points, now = [(0.0, 0.0)], 0
    for time, change in sorted(changes):
        points.append((time, float(now)))
        now += change
        points.append((time, float(now)))
    return points
