"""A report of runs as one HTML file that needs nothing else: figures and charts side by side."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath

from astrai_api.cli.bench.charts import line_chart, timeline
from astrai_api.cli.bench.figures import Figure, figures_of
from astrai_api.cli.bench.records import BenchRun
from astrai_api.cli.bench.series import open_requests, shares, token_rate
from astrai_api.cli.bench.summary import Summary, summarise

MOST_RUNS = 6
"""As many lines as can be told apart."""

_SHOWN_GAPS = 0.995
_NOTABLE = 0.02
"""Changes below it are not coloured: they are noise."""


def report(runs: Sequence[BenchRun]) -> str:
    """The HTML text.

    Args:
        runs: at least one, at most ``MOST_RUNS``; the others are compared with the first.
    """
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    title = " and ".join(run.name for run in runs)
    charts = _charts(runs)
    body = "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f'<div class="runs">{"".join(map(_card, range(len(runs)), runs))}</div>',
            f'<div class="charts">{"".join(charts)}</div>',
            _table(runs),
        ]
    )
    return template.replace("{{title}}", escape(title)).replace("{{body}}", body)


def _card(number: int, run: BenchRun) -> str:
    summary = summarise(run)
    said = [
        (f"{summary.output_tokens_per_second:,.0f}", "output tokens/s"),
        (f"{1000 * summary.first.p50:,.0f} ms", "median to first text"),
        (f"{1000 * summary.per_token.p50:,.1f} ms", "median per token"),
        (f"{1000 * summary.gap.p99:,.0f} ms", "p99 gap"),
    ]
    if run.limits:
        said.append((f"{100 * summary.good_share:.0f} %", "within the limits"))
    tiles = "".join(f"<div><b>{value}</b><span>{label}</span></div>" for value, label in said)
    model = run.target["model"]
    if model.startswith("/"):  # a server that lists its file
        model = PurePosixPath(model).name
    what = f"{model} at {run.target['place']}: {run.load['description']}"
    return (
        f'<section class="run"><h2><i class="s{number}"></i>{escape(run.name)}</h2>'
        f'<p>{escape(what)}</p><div class="tiles">{tiles}</div></section>'
    )


def _charts(runs: Sequence[BenchRun]) -> list[str]:
    answered = [[record for record in run.requests if record.error is None] for run in runs]
    share = "% of requests up to it"
    first = [shares(1000 * r.first for r in each if r.first is not None) for each in answered]
    gaps = [
        shares((1000 * gap for r in each for gap in r.gaps), up_to=_SHOWN_GAPS) for each in answered
    ]
    token = [
        shares(1000 * r.per_token for r in each if r.per_token is not None) for each in answered
    ]
    total = [shares(r.total for r in each) for each in answered]
    charts = [
        ("Time to first text", line_chart(first, "milliseconds", share)),
        ("Time per token after it", line_chart(token, "milliseconds", share)),
        (
            "Gap between pieces of text",
            line_chart(gaps, "milliseconds", "% of gaps (to 99.5)"),
        ),
        ("Whole answer", line_chart(total, "seconds", share)),
        (
            "Output over time",
            line_chart([token_rate(run) for run in runs], "seconds", "tokens a second"),
        ),
        (
            "Open requests over time",
            line_chart([open_requests(run) for run in runs], "seconds", "requests"),
        ),
    ]
    charts += [
        (f"Every request of {run.name}", timeline(run.requests, run.seconds)) for run in runs
    ]
    return [f"<figure><h3>{escape(title)}</h3>{chart}</figure>" for title, chart in charts]


def _table(runs: Sequence[BenchRun]) -> str:
    summaries = [summarise(run) for run in runs]
    names = "".join(
        f'<th><i class="s{number}"></i>{escape(run.name)}</th>' for number, run in enumerate(runs)
    )
    rows = "".join(
        _row(figure, summaries)
        for figure in figures_of(has_limits=any(bool(run.limits) for run in runs))
    )
    return f"<table><thead><tr><th></th>{names}</tr></thead><tbody>{rows}</tbody></table>"


def _row(figure: Figure, summaries: Sequence[Summary]) -> str:
    cells = [
        f"<td>{figure.shown(summary)}{_change(figure, summary, summaries[0])}</td>"
        for summary in summaries
    ]
    return f"<tr><th>{escape(figure.label)}</th>{''.join(cells)}</tr>"


def _change(figure: Figure, summary: Summary, first: Summary) -> str:
    change = figure.change(summary, first)
    if summary is first or change is None:
        return ""
    kind = ""
    if abs(change) >= _NOTABLE:
        kind = "good" if (change > 0) == (figure.better == "more") else "bad"
    return f' <small class="{kind}">{100 * change:+.0f} %</small>'
