"""Tokenizers of checkpoint folders."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.folder_tokenizer import read_tokenizer


@pytest.fixture
def folder(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate([*alphabet, "<s>", "</s>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|start|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder, name, value):
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(text, encoding="utf-8")


def test_tokens_named_by_the_configuration(folder):
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    tokenizer = read_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert set(tokenizer.special_tokens) == {"<s>", "</s>", "<|start|>"}
    assert len(tokenizer.encode("<s>", add_special_tokens=False)) == 1


def test_older_folders_name_tokens_in_their_own_file(folder):
    write(folder, "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>"})
    write(folder, "tokenizer_config.json", {"eos_token": "<|start|>"})
    tokenizer = read_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<|start|>")


def test_added_tokens_outside_tokenizer_json(folder):
    """B186: tokens that only the configuration lists are not lost."""
    added = {
        "259": {"content": "<tool>", "special": False},
        "260": {"content": "<|x|>", "special": True},
    }
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": added})
    tokenizer = read_tokenizer(folder)
    assert tokenizer.encode("<tool><|x|>", add_special_tokens=False) == [259, 260]
    assert tokenizer.token_bytes(259) == b"<tool>"
    assert "<|x|>" in tokenizer.special_tokens


def test_a_folder_without_configuration(folder):
    tokenizer = read_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, None)


def test_a_folder_without_a_fast_tokenizer(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has neither tokenizer\.json nor .* make one with"):
        read_tokenizer(tmp_path)


def test_a_damaged_tokenizer(folder):
    write(folder, "tokenizer.json", "{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json can't be read"):
        read_tokenizer(folder)
