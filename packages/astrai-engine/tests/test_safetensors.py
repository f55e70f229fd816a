"""Checkpoint folders: complete ones load, damaged ones say what is wrong and where."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading import safetensors, shard
from astrai_engine.loading.checkpoint import Checkpoint
from astrai_engine.models import LlamaModel, allocate

CPU = torch.device("cpu")
IDS = [5, 3, 17, 9, 2, 11]


def reference(folder, *, tied=False, **save_options):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder, **save_options)
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0]


def load(folder, dtype=torch.float32):
    config = safetensors.read_config(folder)
    weights = allocate(config, device=CPU, dtype=dtype)
    safetensors.fill_weights(folder, Checkpoint(folder), config, weights)
    return LlamaModel(config, weights)


def change(folder, edit):
    """Rewrite the checkpoint's tensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_sharded_checkpoint(tmp_path, paged):
    logits = reference(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    torch.testing.assert_close(paged(load(tmp_path)).step({"a": IDS}), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32])
def test_tensors_take_the_requested_dtype(tmp_path, monkeypatch, stored, wanted):
    """Read in pieces, the last of which is shorter."""
    monkeypatch.setattr(shard, "_PIECE_BYTES", 1000)
    reference(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({k: v.to(stored) for k, v in tensors.items()}))
    model = load(tmp_path, wanted)
    tensors = load_file(tmp_path / "model.safetensors")
    assert model.dtype == wanted
    embedding = tensors["model.embed_tokens.weight"].to(wanted)
    assert torch.equal(model.weights.embedding.weight, embedding)
    assert torch.equal(
        model.weights.layers[1].mlp.gate_up.weight,
        torch.cat(
            [
                tensors[f"model.layers.1.mlp.{part}_proj.weight"].to(wanted)
                for part in ("gate", "up")
            ]
        ),
    )


def test_a_tied_head_is_the_embedding(tmp_path, paged):
    """B167: tied, and the file has no head."""
    logits = reference(tmp_path, tied=True)
    model = load(tmp_path)
    assert model.weights.head is model.weights.embedding
    torch.testing.assert_close(paged(model).step({"a": IDS}), logits, rtol=0, atol=1e-4)


def test_a_tied_head_that_is_stored_anyway(tmp_path, paged):
    """B167: tied, and the file repeats the head."""
    logits = reference(tmp_path, tied=True)
    change(
        tmp_path,
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        ),
    )
    model = load(tmp_path)
    torch.testing.assert_close(paged(model).step({"a": IDS}), logits, rtol=0, atol=1e-4)


def test_an_untied_head_that_is_not_stored(tmp_path):
    """B168: no random head; the tensor is named."""
    reference(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelLoadError, match=r"cannot be loaded: lm_head\.weight is missing\.$"):
        load(tmp_path)


def test_everything_wrong_is_named_at_once_with_its_file(tmp_path):
    reference(tmp_path)

    def damage(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(3, 4)
        tensors["model.layers.7.extra"] = torch.zeros(1)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    change(tmp_path, damage)
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} cannot be loaded: model.layers.0.mlp.down_proj.weight in model.safetensors "
        "has shape (3, 4) instead of (32, 48); model.layers.7.extra in model.safetensors is not "
        "part of this architecture; model.norm.weight is missing."
    )


def test_a_stale_index(tmp_path):
    """B171: the index promises a tensor that its shard does not hold."""
    reference(tmp_path, max_shard_size="20KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = index["weight_map"]["model.norm.weight"]
    tensors = load_file(tmp_path / shard)
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / shard, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=rf": model\.norm\.weight is not in {shard}\.$"):
        load(tmp_path)


def test_files_that_are_absent_or_damaged(tmp_path):
    reference(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors can't be read"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(ModelLoadError, match="only safetensors are read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json is not valid JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="does not hold a JSON object"):
        load(tmp_path)
