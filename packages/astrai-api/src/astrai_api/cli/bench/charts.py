"""Charts as SVG text: lines over axes, and requests as bars over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from astrai_api.cli.bench.records import RequestRecord

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 560, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 40
_MOST_BARS = 160


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: with the unit.
        end: its largest value; it begins at 0.
    """

    label: str
    end: float

    @property
    def ticks(self) -> list[float]:
        """A handful of round values."""
        step = _round_step(self.end / 5)
        return [step * number for number in range(int(self.end / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ... from a value on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def line_chart(series: Sequence[Points], x_label: str, y_label: str) -> str:
    """Lines over common axes; line ``i`` has the class ``s{i}``.

    Args:
        series: points of each line, from left to right.
        x_label: of the axis, with its unit.
        y_label: alike.
    """
    x_axis = Axis(x_label, max((x for line in series for x, _ in line), default=0) or 1)
    y_axis = Axis(y_label, 1.05 * max((y for line in series for _, y in line), default=0) or 1)
    lines = [
        f'<polyline class="s{number}" points="{_path(line, x_axis, y_axis)}"/>'
        for number, line in enumerate(series)
        if line
    ]
    return _svg(_HEIGHT, [*_grid(x_axis, y_axis), *lines])


def timeline(records: Sequence[RequestRecord], seconds: float) -> str:
    """A bar for each request: pale while it waits for its first text, full while text comes.

    Args:
        records: those shown are spread over all of them where there are too many.
        seconds: the run took.
    """
    step = max(1, -(-len(records) // _MOST_BARS))
    shown = records[::step]
    x_axis = Axis("seconds since the start", seconds or 1)
    height = (_HEIGHT - _TOP - _BOTTOM) / max(len(shown), 1)
    bars = [
        _bars(record, x_axis, _TOP + height * number, max(height * 0.8, 0.8))
        for number, record in enumerate(shown)
    ]
    return _svg(_HEIGHT, [*_x_grid(x_axis), *bars])


def _bars(record: RequestRecord, axis: Axis, y: float, height: float) -> str:
    first = record.total if record.first is None else record.first
    spans = [("waiting", 0.0, first), ("coming", first, record.total)]
    if record.error is not None:
        spans = [("failed", 0.0, record.total)]
    tip = record.error or (
        f"sent at {record.due:.2f} s, first text after {first:.3f} s, "
        f"{record.output_tokens} tokens in {record.total:.2f} s"
    )
    rectangles = "".join(
        f'<rect class="{kind}" x="{_x(record.due + begin, axis):.1f}" y="{y:.1f}" '
        f'width="{max(_x(end, axis) - _x(begin, axis), 0.5):.1f}" height="{height:.1f}"/>'
        for kind, begin, end in spans
    )
    return f"<g><title>{escape(tip)}</title>{rectangles}</g>"


def _svg(height: int, parts: Sequence[str]) -> str:
    content = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">\n{content}\n</svg>'


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    rows = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_y(tick, y_axis):.1f}" '
        f'y2="{_y(tick, y_axis):.1f}"/>'
        f'<text class="y" x="{_LEFT - 6}" y="{_y(tick, y_axis) + 4:.1f}">{tick:g}</text>'
        for tick in y_axis.ticks
    ]
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    label = (
        f'<text class="label" transform="translate(12 {middle}) rotate(-90)">'
        f"{escape(y_axis.label)}</text>"
    )
    return [*_x_grid(x_axis), *rows, label]


def _x_grid(axis: Axis) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    columns = [
        f'<line x1="{_x(tick, axis):.1f}" x2="{_x(tick, axis):.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="x" x="{_x(tick, axis):.1f}" y="{bottom + 16}">{tick:g}</text>'
        for tick in axis.ticks
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = f'<text class="label" x="{middle}" y="{_HEIGHT - 6}">{escape(axis.label)}</text>'
    return [*columns, label]


def _x(value: float, axis: Axis) -> float:
    return _LEFT + value / axis.end * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, axis: Axis) -> float:
    return _HEIGHT - _BOTTOM - value / axis.end * (_HEIGHT - _TOP - _BOTTOM)


def _path(line: Points, x_axis: Axis, y_axis: Axis) -> str:
    return " ".join(f"{_x(x, x_axis):.1f},{_y(y, y_axis):.1f}" for x, y in line)
