"""Commands whose modules are imported when they are used: ``astrai --help`` imports none."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from astrai_api.cli.exits import CommandError, exit_code
from astrai_engine.errors import AstraiError


class DeferredCommand(TyperCommand):
    """Stands for a command in the list of all, and becomes it when it is called.

    Args:
        name: of the command.
        module: has the command or the group as its ``app``.
        summary: one line about it.
    """

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary, short_help=summary, rich_markup_mode="rich")
        self._module = module

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command."""
        app: typer.Typer = import_module(self._module).app
        command = typer.main.get_command(app)
        command.name = self.name
        _join_lines(command)
        return command.make_context(info_name, args, parent=parent, **extra)


def _join_lines(command: Any) -> None:
    """Have paragraphs of help flow: lines of a docstring end where those of a terminal do not."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    for subcommand in getattr(command, "commands", {}).values():
        _join_lines(subcommand)


def deferred_group(commands: Mapping[str, tuple[str, str]]) -> type[TyperGroup]:
    """A group of deferred commands, which also says in a sentence what went wrong in them.

    Args:
        commands: by name, the module and the one line about it.
    """

    class DeferredGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for name, (module, summary) in commands.items():
                self.add_command(DeferredCommand(name, module, summary))

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except (CommandError, AstraiError) as error:
                typer.echo(f"astrai: {error}", err=True)
                raise typer.Exit(exit_code(error)) from error

    return DeferredGroup
