"""Models from the hub: a real client, a real socket, and a hub of our own behind it."""

import json
import os
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from astrai_engine import list_models, pull_model, remove_model
from astrai_engine.errors import ModelNotFoundError
from astrai_engine.fake_hub import FakeHub
from astrai_engine.loading.hub import download
from astrai_engine.loading.hub_files import HubName

WEIGHTS = bytes(range(256)) * 1000
SHARDS = {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}
REPOSITORIES = {
    "org/single": {
        "config.json": b"{}",
        "tokenizer.json": b"{ }",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": WEIGHTS,
        "README.md": b"# Model",
        "onnx/config.json": b"{}",
    },
    "org/sharded": {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": SHARDS}).encode(),
        "model-1.safetensors": WEIGHTS,
        "model-2.safetensors": WEIGHTS[1:],
        "model-3.safetensors": WEIGHTS[2:],
    },
    "org/quantised": {
        "m-Q8_0.gguf": b"eight" + WEIGHTS,
        "m-Q4_0-00001-of-00002.gguf": b"four" + WEIGHTS,
        "m-Q4_0-00002-of-00002.gguf": b"four, more",
    },
    "org/private": {"config.json": b"{}", "model.safetensors": WEIGHTS},
    "org/pickled": {"config.json": b"{}", "pytorch_model.bin": WEIGHTS},
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with FakeHub(REPOSITORIES) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub
    huggingface_hub.close_session()


def fetch(name, **options):
    return download(HubName.parse(name), **options)


def go_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()


def test_only_the_needed_files_are_fetched_and_only_once(hub):
    folder = fetch("org/single")
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    before = len(hub.downloads())
    assert fetch("org/single") == folder
    assert len(hub.downloads()) == before


def test_the_shards_of_the_index_are_fetched(hub):
    folder = fetch("org/sharded")
    assert not (folder / "model-3.safetensors").exists()
    assert (folder / "model-2.safetensors").read_bytes() == WEIGHTS[1:]


def test_one_gguf_model_of_several(hub):
    path = fetch("org/quantised:Q4_0")
    assert path.name == "m-Q4_0-00001-of-00002.gguf"
    assert sorted(hub.downloads()) == [path.name, "m-Q4_0-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFoundError, match=r"holds 2 GGUF models.*m-Q8_0\.gguf"):
        fetch("org/quantised")


def test_a_broken_connection_is_taken_up_where_it_broke(hub, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.breaks_after = 100_000
    folder = fetch("org/single")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert any("model.safetensors bytes=100000-" in request for request in hub.requests)


def test_what_was_whole_is_kept_when_a_download_fails(hub):
    hub.lost = {"model-2.safetensors"}
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        fetch("org/sharded")
    assert list_models() == []
    hub.lost = set()
    fetch("org/sharded")
    assert [m.name for m in list_models()] == ["org/sharded"]
    assert hub.downloads().count("model-1.safetensors") == 1


def test_an_index_that_names_absent_shards_is_refused(hub):
    del hub.repositories["org/sharded"]["model-2.safetensors"]
    with pytest.raises(ModelNotFoundError, match=r"org/sharded lacks model-2\.safetensors"):
        fetch("org/sharded")


def test_revision_and_token(hub):
    commit = hub.commit("org/single")
    assert fetch("org/single", revision=commit).name == commit
    with pytest.raises(ModelNotFoundError, match="Invalid rev id: v9"):
        fetch("org/single", revision="v9")
    with pytest.raises(ModelNotFoundError, match="your access token"):
        fetch("org/private")
    assert (fetch("org/private", token="secret") / "model.safetensors").is_file()


def test_offline_the_cache_serves(hub, monkeypatch, caplog):
    folder, file = fetch("org/single"), fetch("org/quantised:Q8_0")
    fetched = len(hub.requests)
    go_offline(monkeypatch)
    assert fetch("org/single") == folder
    assert fetch("org/quantised") == file
    assert "org/single is served from the cache" in caplog.text
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        fetch("org/quantised:Q4_0")
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        fetch("org/sharded")
    assert len(hub.requests) == fetched


def test_a_partial_download_does_not_serve_offline(hub, monkeypatch):
    folder = fetch("org/sharded")
    (folder / "model-2.safetensors").unlink()
    go_offline(monkeypatch)
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        fetch("org/sharded")


def test_no_such_model_is_one_sentence(hub):
    with pytest.raises(ModelNotFoundError) as caught:
        fetch("org/nothing")
    message = str(caught.value)
    assert message.startswith(
        "Model 'org/nothing' is not a folder or file here and could not be downloaded from the hub"
    )
    assert "\n" not in message
    with pytest.raises(ModelNotFoundError, match="only safetensors and GGUF are read"):
        fetch("org/pickled")


def test_progress_is_told_in_bytes_from_none_to_all(hub):
    steps = []
    pull_model("org/sharded", on_progress=lambda done, total: steps.append((done, total)))
    needed = sum(
        len(content)
        for name, content in REPOSITORIES["org/sharded"].items()
        if name not in ("model-3.safetensors", "model.safetensors.index.json")
    )
    assert steps[0] == (0, needed)
    assert steps[-1] == (needed, needed)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    steps.clear()
    pull_model("org/sharded", on_progress=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 0)]


def test_the_store_lists_what_was_pulled(hub):
    single, quantised = pull_model("org/single"), pull_model("org/quantised:q8_0")
    assert (single.name, single.revision) == ("org/single", hub.commit("org/single"))
    assert single.size == len(WEIGHTS) + 5
    assert quantised.name == "org/quantised:m-Q8_0.gguf"
    assert quantised.path.read_bytes() == b"eight" + WEIGHTS
    assert list_models() == [quantised, single]
    pull_model("org/quantised:Q4_0")
    assert [m.name for m in list_models()] == [
        "org/quantised:m-Q4_0-00001-of-00002.gguf",
        "org/quantised:m-Q8_0.gguf",
        "org/single",
    ]


def test_removing_gives_the_bytes_back(hub, tmp_path):
    pull_model("org/quantised:Q8_0")
    pull_model("org/quantised:Q4_0")
    pull_model("org/single")
    assert remove_model("org/quantised:Q4_0") == len(WEIGHTS) + len("fourfour, more")
    assert [m.name for m in list_models()] == ["org/quantised:m-Q8_0.gguf", "org/single"]
    assert remove_model("org/quantised") == len(WEIGHTS) + len("eight")
    assert remove_model("org/single") == len(WEIGHTS) + 5
    assert list_models() == []
    assert not any(path.is_file() for path in tmp_path.rglob("blobs/*"))
    for name in ("org/single", "org/quantised:Q8_0"):
        with pytest.raises(ModelNotFoundError, match="is not in the cache"):
            remove_model(name)


def test_an_empty_cache_lists_nothing(hub):
    assert list_models() == []
    with pytest.raises(ModelNotFoundError, match="is not in the cache"):
        remove_model("org/single")


def test_the_endpoint_of_the_environment(hub, tmp_path):
    """In a process of its own, as users set it."""
    code = "import astrai_engine as a; print(a.pull_model('org/private').path)"
    where = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "secret"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | where,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().startswith(str(tmp_path / "home" / "hub" / "models--org--private"))
