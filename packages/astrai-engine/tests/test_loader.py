"""Whole models from every kind of source."""

import json
import logging

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig

from astrai_engine.errors import UnsupportedArchitectureError
from astrai_engine.loading import load_model, loader, resolve_source
from astrai_engine.loading.source import EMBEDDED_NAME
from astrai_engine.models import TransformersModel
from astrai_engine.tokenizer import encode_chat, render_chat

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<eot>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=None,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def load(folder, dtype=torch.float32):
    return load_model(resolve_source(str(folder)), device=CPU, dtype=dtype)


def set_eos(folder, name, value):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": value}))


def test_the_embedded_model(paged):
    loaded = load_model(resolve_source(None), device=CPU, dtype=torch.float32)
    assert loaded.name == EMBEDDED_NAME
    assert loaded.defaults.eos_token_ids == {2}
    assert loaded.model.weights.head is loaded.model.weights.embedding
    shapes = loaded.config
    assert (shapes.num_layers, shapes.num_heads, shapes.num_kv_heads) == (30, 9, 3)
    assert (shapes.max_seq_len, shapes.vocab_size, shapes.head_dim) == (8192, 49152, 64)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    chat = render_chat(loaded.chat_template, loaded.tokenizer, question)
    ids = encode_chat(chat, loaded.tokenizer)
    runner = paged(loaded.model)
    answer = []
    while not answer or answer[-1] != 2:
        logits = runner.step({"a": answer[-1:] or ids}, logit_rows=torch.tensor([-1]))
        answer.append(int(logits.argmax()))
    assert loaded.tokenizer.decode(answer) == "The capital of France is Paris."


def test_a_folder(folder):
    loaded = load(folder, torch.bfloat16)
    assert (loaded.name, loaded.chat_template) == (folder.name, None)
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.defaults.eos_token_ids == {256}


def test_another_architecture_runs_by_transformers(folder, paged):
    config = GPTNeoXConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=7,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    loaded = load(folder)
    assert isinstance(loaded.model, TransformersModel)
    assert (loaded.config.architecture, loaded.precision) == ("gpt_neox", "none")
    assert loaded.defaults.eos_token_ids == {7, 256}
    assert paged(loaded.model, max_seq_len=16).step({"a": [1, 2, 3]}).shape == (3, 260)
    with pytest.raises(UnsupportedArchitectureError, match="cannot be kept in int8"):
        load_model(resolve_source(str(folder)), device=CPU, dtype=torch.float32, precision="int8")


def test_a_hub_id_is_downloaded_and_keeps_its_name(folder, monkeypatch):
    asked = []

    def download(name, *, revision):
        asked.append((str(name), revision))
        return folder

    monkeypatch.setattr(loader, "download", download)
    source = resolve_source("org/name", revision="v1")
    assert load_model(source, device=CPU, dtype=torch.float32).name == "org/name"
    assert asked == [("org/name", "v1")]


def test_end_tokens_of_every_file_count(folder):
    set_eos(folder, "config.json", 7)
    set_eos(folder, "generation_config.json", [8, 257])
    assert load(folder).defaults.eos_token_ids == {7, 8, 256, 257}


def test_an_end_token_outside_the_vocabulary_is_ignored_with_a_warning(folder, caplog):
    """B179: no index is out of range later."""
    set_eos(folder, "generation_config.json", [260, 257])
    with caplog.at_level(logging.WARNING):
        assert load(folder).defaults.eos_token_ids == {256, 257}
    assert "id 260 is outside the vocabulary of 260 tokens" in caplog.text


def test_sampling_defaults_come_with_the_model(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.5, "eos_token_id": 8}))
    assert load(folder).defaults.sampling == {"temperature": 0.5}
    path.unlink()
    assert load(folder).defaults.sampling == {}


def test_a_template_the_user_gives_stands_before_the_model_s(folder):
    (folder / "chat_template.jinja").write_text("the model's")
    mine = folder / "mine.txt"
    mine.write_text("mine")
    for given, text in ((None, "the model's"), (str(mine), "mine")):
        loaded = load_model(
            resolve_source(str(folder)), device=CPU, dtype=torch.float32, chat_template=given
        )
        assert loaded.chat_template.render([{"role": "user", "content": "hi"}]) == text
