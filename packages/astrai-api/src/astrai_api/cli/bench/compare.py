"""``astrai bench compare``: runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from astrai_api.cli.bench.options import HtmlFile
from astrai_api.cli.bench.records import BenchRun, write_text
from astrai_api.cli.bench.report import MOST_RUNS, report
from astrai_api.cli.bench.tables import figures_table
from astrai_api.cli.console import Remarks, output
from astrai_api.cli.exits import usage_error


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(help="Results that 'bench serve --json' wrote; the first is the yardstick."),
    ],
    *,
    html_file: HtmlFile = None,
) -> None:
    """Show runs side by side, in a table and in a report with charts."""
    if len(files) > MOST_RUNS:
        raise usage_error(f"At most {MOST_RUNS} runs can be told apart in a chart; name fewer.")
    runs = [BenchRun.load_file(path) for path in files]
    output().print(figures_table(runs))
    if html_file is not None:
        write_text(html_file, report(runs))
        Remarks().say(f"The report is in {html_file}.")
