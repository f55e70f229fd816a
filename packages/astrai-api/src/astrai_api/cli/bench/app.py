"""``astrai bench``: its subcommands."""

import typer

from astrai_api.cli.bench.compare import compare
from astrai_api.cli.bench.serve import serve

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
app.command("serve", epilog="Example: [bold]astrai bench serve --rate 4 --html report.html[/bold]")(
    serve
)
app.command("compare")(compare)


@app.callback()
def bench() -> None:
    """Measure how fast a server answers, and compare runs."""
