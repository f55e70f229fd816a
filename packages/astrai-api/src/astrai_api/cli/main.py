"""The ``astrai`` command and its subcommands."""

from importlib.metadata import version
from typing import Annotated

import typer

from astrai_api.cli.deferred import deferred_group

_HOME = "astrai_api.cli"
COMMANDS = {
    "serve": (f"{_HOME}.serve", "Serve a model over HTTP, for OpenAI and Anthropic clients."),
    "chat": (f"{_HOME}.chat", "Talk with a model in the terminal."),
    "generate": (f"{_HOME}.generate", "Answer one prompt and exit, for scripts and pipes."),
    "run-batch": (f"{_HOME}.run_batch", "Run a file of requests; it resumes where it was stopped."),
    "bench": (f"{_HOME}.bench.app", "Measure how fast a server answers, and compare runs."),
    "models": (f"{_HOME}.models", "List, fetch and remove models on this machine."),
    "doctor": (f"{_HOME}.doctor", "Say what this machine offers, what would run on it, and why."),
}
"""Every subcommand: where it is, and the line that ``astrai --help`` shows."""

app = typer.Typer(
    cls=deferred_group(COMMANDS),
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"astrai-api {version('astrai-api')}, astrai-engine {version('astrai-engine')}")
        raise typer.Exit


@app.callback(
    epilog="Start with [bold]astrai chat[/bold], which needs nothing else, or with "
    "[bold]astrai serve[/bold]. Each command has its own [bold]--help[/bold]."
)
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show versions and exit."
        ),
    ] = False,
) -> None:
    """Run language models on your own machine: serve them, talk with them, measure them."""


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="astrai")
