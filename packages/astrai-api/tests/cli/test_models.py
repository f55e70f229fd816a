import json
from pathlib import Path

import pytest

from astrai_engine import StoredModel
from astrai_engine.errors import ModelNotFoundError

MODEL = StoredModel("org/name:a.gguf", Path("/cache/a.gguf"), 3 * 2**20, "0123456789abcdef", 0.0)


@pytest.fixture
def store(monkeypatch):
    """Stands for the store of the engine; gives what it was asked to do."""
    asked = []

    def pull(name, *, revision, token, on_progress):
        on_progress(1, 2)
        asked.append((name, revision, token))
        if name == "org/nothing":
            raise ModelNotFoundError("There is no model 'org/nothing'.")
        return MODEL

    def remove(name):
        asked.append(name)
        return 3 * 2**20

    home = "astrai_api.cli.models"
    monkeypatch.setattr(f"{home}.list_models", lambda: [MODEL])
    monkeypatch.setattr(f"{home}.pull_model", pull)
    monkeypatch.setattr(f"{home}.remove_model", remove)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return asked


def test_what_is_there_is_listed(astrai, store):
    line = astrai("models", "list").stdout.splitlines()[-1]
    assert line.split() == ["org/name:a.gguf", "3.0", "MiB", "1970-01-01", "0123456789ab"]


def test_programs_get_json(astrai, store):
    (model,) = json.loads(astrai("models", "list", "--json").stdout)
    assert (model["name"], model["path"], model["size"]) == (
        "org/name:a.gguf",
        "/cache/a.gguf",
        3 * 2**20,
    )


def test_a_model_is_fetched(astrai, store):
    result = astrai("models", "pull", "org/name:a", "--revision", "v1", "--token", "t")
    assert result.exit_code == 0
    assert store == [("org/name:a", "v1", "t")]
    assert result.stderr == "org/name:a.gguf is in /cache/a.gguf (3.0 MiB).\n"


def test_a_model_that_is_not_there_is_a_sentence(astrai, store):
    result = astrai("models", "pull", "org/nothing")
    assert result.exit_code == 4
    assert result.stderr == "astrai: There is no model 'org/nothing'.\n"


def test_removing_says_what_it_freed(astrai, store):
    result = astrai("models", "rm", "org/name", "--yes")
    assert (result.exit_code, store) == (0, ["org/name"])
    assert "3.0 MiB are free again." in result.stderr


def test_removing_wants_a_yes(astrai, store):
    result = astrai("models", "rm", "org/name")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    assert store == []


@pytest.mark.parametrize("arguments", [["nonsense"], ["pull"], ["rm"], ["list", "--nonsense"]])
def test_a_wrong_command_line_is_refused(astrai, store, arguments):
    assert astrai("models", *arguments).exit_code == 2


@pytest.mark.parametrize("command", ["pull", "rm"])
def test_a_name_that_is_none_is_a_sentence(astrai, command):
    result = astrai("models", command, "no name at all", *(["--yes"] if command == "rm" else []))
    assert result.exit_code == 4
    assert result.stderr.startswith("astrai: ")
    assert "no name at all" in result.stderr
