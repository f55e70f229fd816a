"""``astrai doctor``: what this machine offers, what would run on it, and why."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from astrai_api.cli.console import Remarks, output
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_api.cli.machine import Fact, in_units, machine_facts
from astrai_api.cli.setting_options import (
    EPILOG,
    GivenSettings,
    shown_default,
    takes_settings,
)
from astrai_api.settings import Settings

if TYPE_CHECKING:
    from astrai_engine.config import EngineConfig
    from astrai_engine.doctor import Examination

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_SECRET = {"api_key"}


@app.command(epilog=EPILOG)
@takes_settings
def doctor(
    given: GivenSettings,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print it as one JSON object, for programs.")
    ] = False,
) -> None:
    """Say what this machine offers, what would run on it, and why.

    Takes the options of [bold]astrai serve[/bold], so that a setting can be tried before a model
    is loaded with it. The exit status is 4 when the server could not start like this.
    """
    remarks = Remarks()
    with remarks.waiting("Looking at the machine"):
        examination = examine(given.settings.engine_config())
    sections = {
        "machine": machine_facts(),
        "engine": _engine_facts(examination),
        "memory": _memory_facts(examination),
        "settings": _setting_facts(given),
    }
    if as_json:
        content = {title: dict(facts) for title, facts in sections.items()}
        typer.echo(json.dumps({**content, "problems": examination.problems}))
    else:
        for title, facts in sections.items():
            if facts:
                output().print(_section(title, facts))
    if examination.problems:
        raise CommandError(" ".join(examination.problems), ExitCode.CONFIGURATION)


def examine(config: "EngineConfig") -> "Examination":
    """What an engine would be. Imports torch."""
    from astrai_engine import doctor as engine_doctor  # noqa: PLC0415  (torch comes with it)

    return engine_doctor.examine(config)


def _engine_facts(examination: "Examination") -> list[Fact]:
    source = examination.source
    facts = [
        ("model", "none" if source is None else f"{source.name} ({source.kind})"),
        ("from", "" if source is None else source.location),
        ("device", f"{examination.device}, {in_units(examination.free_bytes)} free"),
        ("numbers", f"{examination.dtype}, weights {_PRECISIONS[examination.precision]}"),
        *((_KERNEL_LABELS.get(label, label), text) for label, text in examination.kernels),
    ]
    return [(label, text) for label, text in facts if text]


_PRECISIONS = {
    "none": "as they are",
    "int8": "rounded to 8 bits",
    "int4": "rounded to 4 bits",
    "file": "as the GGUF file has them; others as they are",
}
_KERNEL_LABELS = {
    "version": "kernels",
    "device": "kernels' device",
    "requested": "backend asked for",
    "rejected": "not used",
    "cpu": "native CPU",
}


def _memory_facts(examination: "Examination") -> list[Fact]:
    plan = examination.plan
    if plan is None:
        if examination.problems:
            return []
        return [("plan", "told once the model has been fetched: astrai models pull")]
    return [
        ("weights", f"about {in_units(plan.weights)}"),
        ("K/V of a token", f"{in_units(plan.kv_per_token)}, {plan.dtype}"),
        ("K/V pool", f"{in_units(plan.pool)}: {plan.n_tokens:,} tokens"),
        ("context", f"{plan.max_seq_len:,} tokens"),
        ("in a step", f"at most {plan.max_step_tokens:,} tokens"),
    ]


def _setting_facts(given: GivenSettings) -> list[Fact]:
    return [(name, f"{_shown(given, name)} ({given.origin(name)})") for name in _ordered(given)]


def _ordered(given: GivenSettings) -> list[str]:
    """Those that somebody set come first."""
    return sorted(Settings.model_fields, key=lambda name: given.origin(name) == "default")


def _shown(given: GivenSettings, name: str) -> str:
    value = getattr(given.settings, name)
    if given.origin(name) == "default":
        return shown_default(name)
    if name in _SECRET:
        return "set, and not shown"
    if isinstance(value, tuple):
        value = ", ".join(value)
    return str(value)


def _section(title: str, facts: list[Fact]) -> Table:
    table = Table(box=None, pad_edge=False, title=f"\n{title.capitalize()}", title_justify="left")
    table.title_style = "bold"
    table.show_header = False
    table.add_column(style="dim", no_wrap=True, min_width=18)
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(label, escape(text))
    return table
