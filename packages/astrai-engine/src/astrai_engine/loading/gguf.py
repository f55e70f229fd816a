"""A model from a GGUF file: its metadata in Hugging Face terms, its tensors in our slots."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.completeness import check_complete
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.weights import ModelWeights

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
_PERMUTED = ("llama", "smollm3")
"""Architectures whose query and key rows the converter reordered for interleaved rotation."""

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS = "rope_freqs.weight"
_NOT_WEIGHTS = (_ROPE_DIVISORS,)


def read_config(file: GGUFFile) -> ModelConfig:
    """The configuration a GGUF file's metadata describes.

    Args:
        file: the open file.

    Raises:
        ModelLoadError: the architecture or a setting is not supported, or one is missing.
    """
    if file.architecture not in _ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path} holds a model of architecture {file.architecture}, which is not "
            f"supported; supported are {', '.join(_ARCHITECTURES)}."
        )
    num_parts = file.get("split.count", 1)
    if num_parts > 1:
        raise ModelLoadError(
            f"{file.path} is one of {num_parts} parts of a model; merge them into one file with "
            "llama-gguf-split --merge."
        )
    config = ModelConfig.from_hf(_hf_config(file))
    if _ROPE_DIVISORS in file.tensors:
        divisors = np.empty(file.shape(_ROPE_DIVISORS), np.float32)
        file.read_into(_ROPE_DIVISORS, divisors)
        config = dataclasses.replace(
            config, rope=dataclasses.replace(config.rope, divisors=tuple(divisors.tolist()))
        )
    return config


def _hf_config(file: GGUFFile) -> dict[str, Any]:
    heads = _required(file, "attention.head_count")
    hidden = _required(file, "embedding_length")
    layers = _required(file, "block_count")
    vocab = file.get("tokenizer.ggml.tokens", ())
    embedding = file.tensors.get("token_embd.weight")
    return {
        "architectures": [_ARCHITECTURES[file.architecture]],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": file.setting("attention.head_count_kv", heads),
        "head_dim": file.setting("attention.key_length", hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": _required(file, "feed_forward_length"),
        "vocab_size": file.shape("token_embd.weight")[0] if embedding else len(vocab),
        "max_position_embeddings": _required(file, "context_length"),
        "rms_norm_eps": _required(file, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": [
            token_id
            for key in ("eos_token_id", "eot_token_id", "eom_token_id")
            if (token_id := file.get(f"tokenizer.ggml.{key}")) is not None
        ],
        # SmolLM3 does not rotate in every fourth layer, and its files do not say so.
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(layers)]
        if file.architecture == "smollm3"
        else None,
    }


def _required(file: GGUFFile, key: str) -> Any:
    value = file.setting(key)
    if value is None:
        raise ModelLoadError(
            f"{file.path} has no {file.architecture}.{key}; convert the model again."
        )
    return value


def _rope(file: GGUFFile) -> dict[str, Any]:
    kind = file.setting("rope.scaling.type", "none")
    theta = file.setting("rope.freq_base", 10000.0)
    if kind == "none":
        return {"rope_theta": theta}
    return {
        "rope_theta": theta,
        "rope_type": kind,
        "factor": file.setting("rope.scaling.factor"),
        "original_max_position_embeddings": file.setting("rope.scaling.original_context_length"),
    }


def fill_weights(file: GGUFFile, config: ModelConfig, weights: ModelWeights) -> None:
    """Dequantise every tensor straight into its place.

    Args:
        file: the open file.
        config: what ``read_config`` made of it.
        weights: allocated by that configuration.

    Raises:
        ModelLoadError: tensors are missing, unexpected or of another shape; all are named.
    """
    places = dict(_places(file, weights))
    _check_tensors(file, places, weights)
    for name, slot in places.items():
        _fill(file, name, slot, config.head_dim)


def _fill(file: GGUFFile, name: str, slot: torch.Tensor, head_dim: int) -> None:
    """Dequantise a tensor, in the slot's own memory where that can be.

    On the CPU all is done in numpy: torch would wake its threads for every little copy.
    """
    is_ready = slot.device.type == "cpu" and slot.dtype == torch.float32
    target = slot if is_ready else torch.empty(slot.shape, dtype=torch.float32)
    values = target.numpy()
    file.read_into(name, values.reshape(-1))
    if is_permuted(file, name):
        values[...] = half_split(values, head_dim)
    if not is_ready:
        slot.copy_(target)


def _places(file: GGUFFile, weights: ModelWeights) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of the file with the slot it fills."""
    for name in file.tensors:
        slot = weights.slots.get(hf_name(name))
        if slot is not None:
            yield name, slot


def hf_name(name: str) -> str:
    """What a tensor of a GGUF file is called in a Hugging Face checkpoint."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        return f"model.layers.{layer}.{_LAYER_NAMES.get(part, part)}.{suffix}"
    return f"{_TOP_NAMES.get(stem, stem)}.{suffix}"


def _check_tensors(file: GGUFFile, places: dict[str, torch.Tensor], weights: ModelWeights) -> None:
    filled = {hf_name(name) for name in places}
    problems = [f"{name} is missing" for name in weights.slots if name not in filled]
    problems += [
        f"{name} is not part of this architecture"
        for name in file.tensors
        if name not in places and name not in _NOT_WEIGHTS and hf_name(name) not in weights.packed
    ]
    problems += [
        f"{name} has shape {file.shape(name)} instead of {tuple(slot.shape)}"
        for name, slot in places.items()
        if file.shape(name) != tuple(slot.shape)
    ]
    check_complete(file.path, problems)


def is_permuted(file: GGUFFile, name: str) -> bool:
    """Whether the converter reordered a tensor's rows."""
    return file.architecture in _PERMUTED and (".attn_q." in name or ".attn_k." in name)


def half_split(values: np.ndarray[Any, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """Undo the converter's reordering: pairs (2i, 2i+1) of each head become (i, i + half).

    Args:
        values: rows of any width and type.
        head_dim: rows of a head.
    """
    heads = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)
