"""Checkpoints from the hub."""

import huggingface_hub
import pytest

from astrai_engine.errors import ModelNotFoundError
from astrai_engine.loading.hub import download


def test_only_the_needed_files_are_fetched(tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert download("org/name") == tmp_path
    assert asked["repo_id"] == "org/name"
    wanted = huggingface_hub.utils.filter_repo_objects(
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "chat_template.jinja",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "original/model.safetensors",
            "onnx/config.json",
        ],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(wanted) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "chat_template.jinja",
    ]


def test_no_network_is_one_sentence(monkeypatch):
    def snapshot_download(repo_id, **options):
        raise OSError("connection refused\nmore\nlines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelNotFoundError) as caught:
        download("org/name")
    assert str(caught.value) == (
        "Model 'org/name' is not a folder or file here and could not be downloaded from the hub "
        "(connection refused); check the name, the network and your access token."
    )


def test_the_real_client_offline(tmp_path, monkeypatch):
    """The library's own errors are turned into ours as well."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="could not be downloaded"):
        download("org/name")
