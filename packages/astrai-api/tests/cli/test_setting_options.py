from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from astrai_api.cli.setting_options import (
    PANELS,
    choices,
    described,
    shown_default,
    takes_settings,
)
from astrai_api.settings import Settings


def listed():
    return [name for texts in PANELS.values() for name in texts]


def test_no_setting_is_listed_twice_and_all_exist():
    assert len(set(listed())) == len(listed())
    assert set(listed()) <= set(Settings.model_fields)


@pytest.mark.parametrize("field", Settings.model_fields)
def test_a_setting_that_is_not_listed_is_described_by_its_docstring(field):
    text = described(field)
    assert text[0].isupper()
    assert text.lower() != field
    assert "\n" not in text


def test_choices_are_those_of_the_type():
    assert choices("dtype") == ("auto", "float32", "bfloat16", "float16")
    assert "hermes" in choices("tool_parser")
    assert choices("model") == choices("max_queue") == ()


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("max_queue", "256"),
        ("shutdown_timeout", "30"),
        ("prefix_cache", "on"),
        ("api_key", "no key needed"),
    ],
)
def test_defaults_are_words(field, shown):
    assert shown_default(field) == shown


def test_a_command_learns_where_values_came_from(monkeypatch):
    monkeypatch.setenv("ASTRAI_MAX_QUEUE", "7")
    monkeypatch.setenv("ASTRAI_PAGE_SIZE", "8")
    app = typer.Typer()
    found = {}

    @app.command()
    @takes_settings
    def command(given, other: Annotated[int, typer.Option()] = 1):
        found.update({name: given.origin(name) for name in Settings.model_fields}, other=other)

    result = CliRunner().invoke(app, ["--page-size", "4", "--other", "2"])
    assert result.exit_code == 0, result.output
    assert found["page_size"] == "option"
    assert found["max_queue"] == "environment"
    assert found["model"] == "default"
    assert found["other"] == 2
