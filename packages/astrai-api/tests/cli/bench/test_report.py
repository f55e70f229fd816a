import re
from html.parser import HTMLParser

from astrai_api.cli.bench.records import Limits
from astrai_api.cli.bench.report import report


class Reader(HTMLParser):
    """Keeps tags and text, and finds tags that are not closed."""

    VOID = ("meta", "br", "line", "polyline", "rect")

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_report_shows_figures_and_charts_of_each_run(record, run_of):
    runs = [
        run_of(record(), record(due=1.0), name="one", limits=Limits(first=0.2)),
        run_of(record(first=0.2), name="two <b>"),
    ]
    html = report(runs)
    page = Reader(html)
    assert page.open == []
    assert page.tags.count(("table", {})) == 1
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 6 + 2
    for told in ("one", "two <b>", "by hand", "goodput (requests/s)", "time to first text, p99"):
        assert told in page.text
    assert "+100 %" in page.text  # the second takes twice as long to its first text


def test_it_needs_nothing_from_elsewhere(record, run_of):
    html = report([run_of(record())])
    assert not re.search(r"https?://(?!x)|src=|href=|@import|url\(|<script", html)
    assert "{{" not in html


def test_failures_alone_make_a_report_too(record, run_of):
    assert "failed requests" in report([run_of(record(error="No.", first=None, gaps=(), tokens=0))])
