from xml.etree import ElementTree

import pytest

from astrai_api.cli.bench.charts import Axis, line_chart, timeline


@pytest.mark.parametrize(
    ("end", "ticks"),
    [(1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (100, [0, 20, 40, 60, 80, 100]), (7, [0, 2, 4, 6])],
)
def test_ticks_are_round_and_end_within(end, ticks):
    assert Axis("", end).ticks == pytest.approx(ticks)


def test_lines_are_drawn_over_common_axes():
    svg = line_chart([[(0, 0), (10, 5)], [], [(0, 5), (5, 0)]], "x <unit>", "y")
    root = ElementTree.fromstring(svg)
    lines = root.findall("polyline")
    assert [line.get("class") for line in lines] == ["s0", "s2"]
    first, last = (tuple(map(float, p.split(","))) for p in lines[0].get("points").split())
    assert first[0] < last[0]
    assert first[1] > last[1]
    assert "x <unit>" in [text.text for text in root.iter("text")]


def test_nothing_to_draw_is_an_empty_chart():
    assert ElementTree.fromstring(line_chart([[]], "x", "y")).findall("polyline") == []
    ElementTree.fromstring(timeline([], 0.0))


def test_a_request_is_a_bar_that_waits_and_one_that_comes(record):
    records = [record(due=1.0, first=0.5, total=2.0), record(error="<No>", first=None)]
    root = ElementTree.fromstring(timeline(records, 4.0))
    good, failed = root.findall("g")
    waiting, coming = good.findall("rect")
    assert float(waiting.get("x")) + float(waiting.get("width")) == pytest.approx(
        float(coming.get("x")), abs=0.2
    )
    assert float(coming.get("width")) == pytest.approx(3 * float(waiting.get("width")), abs=0.3)
    assert [rect.get("class") for rect in failed.findall("rect")] == ["failed"]
    assert failed.find("title").text == "<No>"


def test_too_many_requests_are_thinned_out(record):
    root = ElementTree.fromstring(timeline([record()] * 1000, 1.0))
    assert 100 <= len(root.findall("g")) <= 160
