"""Choosing the files of a repository."""

import json

import pytest

from astrai_engine.errors import ModelNotFoundError
from astrai_engine.loading.hub_files import HubName, choose_files, gguf_models, shard_names

CHECKPOINT = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "model.safetensors",
]
UNNEEDED = [
    "README.md",
    "pytorch_model.bin",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "original/model.safetensors",
    "onnx/config.json",
]
QUANTISED = [
    "tiny-Q4_K_M.gguf",
    "tiny-Q8_0.gguf",
    "tiny-BF16.gguf",
    "tiny-F16-00001-of-00002.gguf",
    "tiny-F16-00002-of-00002.gguf",
    "mmproj-F16.gguf",
]


def chosen(name, files, shards=()):
    return choose_files(HubName.parse(name), files, lambda: shards)


@pytest.mark.parametrize("name", ["org/name", "org/name:Q4_K_M", "org/name:a/b.gguf"])
def test_a_name_is_written_as_it_was_read(name):
    assert str(HubName.parse(name)) == name


def test_a_checkpoint_needs_these_files_and_no_others():
    assert chosen("org/name", [*CHECKPOINT, *UNNEEDED]) == sorted(CHECKPOINT)


def test_of_several_shards_those_of_the_index_are_needed():
    shards = ["model-1.safetensors", "model-2.safetensors"]
    index = "model.safetensors.index.json"
    files = ["config.json", index, *shards, "model-old.safetensors"]
    assert chosen("org/name", files, shards) == sorted(["config.json", index, *shards])


def test_one_file_is_preferred_to_shards():
    files = [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "model-1.safetensors",
    ]
    assert "model-1.safetensors" not in chosen("org/name", files, ["model-1.safetensors"])


def test_a_checkpoint_is_preferred_to_gguf_unless_a_file_is_named():
    files = [*CHECKPOINT, "tiny-Q8_0.gguf"]
    assert chosen("org/name", files) == sorted(CHECKPOINT)
    assert chosen("org/name:Q8_0", files) == ["tiny-Q8_0.gguf"]


def test_the_only_gguf_file_needs_no_name():
    assert chosen("org/name", ["README.md", "config.json", "tiny.gguf"]) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("choice", "files"),
    [
        ("tiny-Q8_0.gguf", ["tiny-Q8_0.gguf"]),
        ("Q8_0", ["tiny-Q8_0.gguf"]),
        ("q4_k_m", ["tiny-Q4_K_M.gguf"]),
        ("F16", ["tiny-F16-00001-of-00002.gguf", "tiny-F16-00002-of-00002.gguf"]),
        (
            "tiny-F16-00002-of-00002.gguf",
            ["tiny-F16-00001-of-00002.gguf", "tiny-F16-00002-of-00002.gguf"],
        ),
        ("BF16", ["tiny-BF16.gguf"]),
    ],
)
def test_a_gguf_model_is_named_by_its_file_or_its_end(choice, files):
    assert chosen(f"org/name:{choice}", QUANTISED) == files


@pytest.mark.parametrize("name", ["org/name", "org/name:Q5_0", "org/name:Q4_K"])
def test_what_is_not_clear_is_refused_with_the_list(name):
    with pytest.raises(ModelNotFoundError) as caught:
        chosen(name, QUANTISED)
    for file in ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "tiny-F16-00001-of-00002.gguf"):
        assert file in str(caught.value)
    assert "mmproj" not in str(caught.value)
    assert "org/name:<file>" in str(caught.value)


def test_nothing_to_serve_is_nothing():
    assert chosen("org/name", UNNEEDED) == []
    assert chosen("org/name", ["config.json", "pytorch_model.bin"]) == []


def test_a_split_model_without_its_first_part_is_no_model():
    assert gguf_models(["m-00002-of-00002.gguf"]) == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', "\x00"])
def test_a_damaged_index_is_one_sentence(content, tmp_path):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(ModelNotFoundError, match="fetch it again"):
        shard_names(tmp_path / "index.json")


def test_an_index_names_each_shard_once(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": {"a": "1", "b": "1", "c": "2"}}))
    assert shard_names(tmp_path / "index.json") == {"1", "2"}
