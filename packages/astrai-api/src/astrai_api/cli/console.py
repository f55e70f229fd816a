"""What a command shows beside its output: progress and remarks, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no remarks, only the output."),
]
"""Option of every command that takes a while."""


def output() -> Console:
    """Standard output, for tables and remarks that are the output itself."""
    return Console(highlight=False)


class Remarks:
    """Standard error, for people who watch.

    Args:
        quiet: show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody watches."""
        return self._console.is_terminal and not self._console.quiet

    def say(self, text: str, *, style: str = "dim") -> None:
        """Print a line as it is."""
        self._console.print(text, style=style, markup=False, soft_wrap=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner while the block runs; nothing where nobody watches."""
        if not self.is_terminal:
            yield
            return
        with self._console.status(text):
            yield

    def progress(self, unit: str) -> Progress:
        """A progress bar, to be entered; nothing where nobody watches.

        Args:
            unit: what is counted, in the plural.
        """
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("[red]{task.fields[remark]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            **self._drawn,
        )

    def download(self) -> Progress:
        """A progress bar of bytes, to be entered; nothing where nobody watches."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            **self._drawn,
        )

    @property
    def _drawn(self) -> dict[str, Any]:
        return {"console": self._console, "disable": not self.is_terminal, "transient": True}
