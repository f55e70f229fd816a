import runpy
import subprocess
import sys

import pytest

from astrai_api.cli.main import COMMANDS, main


def test_help_lists_every_command_with_its_line(astrai):
    result = astrai("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert name in result.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from astrai_api.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'httpx', 'fastapi', 'pydantic', 'uvicorn', 'astrai_api.settings'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_as_the_list_says(astrai, name):
    result = astrai(name, "--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.replace("│", " ").split())
    assert COMMANDS[name][1] in text


def test_the_version_is_told(astrai):
    assert "astrai-api " in astrai("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--no-such-option"], "No such option: --no-such-option"),
        (["serve", "--port", "x"], "Invalid value for '--port'"),
    ],
)
def test_a_wrong_command_line_is_a_sentence_and_status_2(astrai, arguments, told):
    result = astrai(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_entry_point_runs_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["astrai", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert "astrai-api" in capsys.readouterr().out


def test_the_package_runs_the_command_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["astrai_api", "--version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("astrai_api", run_name="__main__")
    assert caught.value.code == 0
    assert "astrai-api" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "completed"),
    [("astrai run", "run-batch"), ("astrai serve --max-q", "--max-queue"),
     ("astrai serve --dtype bfl", "bfloat16"), ("astrai bench se", "serve")],
)  # fmt: skip
def test_completion_knows_commands_options_and_choices(words, completed, monkeypatch, capsys):
    monkeypatch.setenv("_ASTRAI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.split() == [completed]
