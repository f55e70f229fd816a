"""The figures of runs as a table in the terminal."""

from collections.abc import Sequence

from rich.table import Table

from astrai_api.cli.bench.figures import figures_of
from astrai_api.cli.bench.records import BenchRun
from astrai_api.cli.bench.summary import summarise


def figures_table(runs: Sequence[BenchRun]) -> Table:
    """A column for each run; those after the first show by how much they differ from it."""
    table = Table("", *(run.name for run in runs), box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    summaries = [summarise(run) for run in runs]
    for figure in figures_of(has_limits=any(bool(run.limits) for run in runs)):
        cells = [figure.shown(summaries[0])]
        for summary in summaries[1:]:
            change = figure.change(summary, summaries[0])
            shown = "" if change is None else f" ({100 * change:+.0f} %)"
            cells.append(figure.shown(summary) + shown)
        table.add_row(figure.label, *cells)
    return table
