import pytest
import typer
from typer.testing import CliRunner

from astrai_api.cli.deferred import deferred_group
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_engine.errors import GenerationError, ModelLoadError


@pytest.fixture
def run(monkeypatch):
    """Run a command, given as a function, as the only one of a deferred group."""

    def invoke(command, *arguments):
        app = typer.Typer(add_completion=False)
        app.command()(command)
        home = type("Module", (), {"app": app})
        monkeypatch.setattr("astrai_api.cli.deferred.import_module", lambda _: home)
        group = typer.Typer(cls=deferred_group({"command": ("some.module", "A summary.")}))
        group.callback()(lambda: None)
        return CliRunner(env={"COLUMNS": "120"}).invoke(group, ["command", *arguments])

    return invoke


def test_paragraphs_of_help_flow(run):
    def command():
        """First.

        Some lines
        of one paragraph.

        Another.
        """

    shown = [line.strip() for line in run(command, "--help").stdout.splitlines() if line.strip()]
    assert {"First.", "Some lines of one paragraph.", "Another."} <= set(shown)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommandError("It broke.", ExitCode.PARTIAL), 5),
        (CommandError("It broke."), 1),
        (ModelLoadError("It broke."), 4),
        (GenerationError("It broke."), 1),
    ],
)
def test_errors_are_a_sentence_and_a_status(run, error, status):
    def command():
        raise error

    result = run(command)
    assert (result.exit_code, result.stderr) == (status, "astrai: It broke.\n")


def test_anything_else_is_a_bug_and_keeps_its_traceback(run):
    def command():
        raise ZeroDivisionError

    assert isinstance(run(command).exception, ZeroDivisionError)
