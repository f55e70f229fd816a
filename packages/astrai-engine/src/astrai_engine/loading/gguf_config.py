"""The configuration that a GGUF file's metadata describes, in Hugging Face terms."""

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.models.config import ModelConfig

ROPE_DIVISORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_GEMMA3_LARGEST, _GEMMA2_LARGEST = 62, 46
"""Layers of the one model of each generation that scales attention by another size."""

_Settings = dict[str, Any]


def read_config(file: GGUFFile) -> ModelConfig:
    """The configuration a GGUF file's metadata describes.

    Args:
        file: the open file.

    Raises:
        UnsupportedArchitectureError: the architecture is not one of ours.
        ModelLoadError: a setting is not supported, or one is missing.
    """
    name = file.architecture
    if name not in _ARCHITECTURES:
        nearest = get_close_matches(name, _ARCHITECTURES, n=1)
        hint = f"the nearest supported is {nearest[0]}, and all are" if nearest else "supported are"
        raise UnsupportedArchitectureError(
            f"{file.path} holds a model of architecture {name}, which is not supported; "
            f"{hint} {', '.join(_ARCHITECTURES)}."
        )
    if file.setting("expert_count", 0):
        raise ModelLoadError(
            f"{file.path} holds a mixture of experts, which is not supported in GGUF files; use "
            "the model's safetensors."
        )
    architecture, specifics = _ARCHITECTURES[name]
    settings = {"architectures": [architecture], **_common(file), **specifics(file)}
    config = ModelConfig.from_hf(settings)
    if ROPE_DIVISORS in file.tensors:
        config = config.with_rope(divisors=_vector(file, ROPE_DIVISORS))
    # What a norm adds to its weight is in the file's weight already.
    return dataclasses.replace(config, norm_offset=0.0)


def _common(file: GGUFFile) -> _Settings:
    heads, hidden = _required(file, "attention.head_count"), _required(file, "embedding_length")
    vocab = file.get("tokenizer.ggml.tokens", ())
    embedding = file.tensors.get("token_embd.weight")
    settings = {
        "num_hidden_layers": _required(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _uniform(file, "attention.head_count_kv", heads),
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
    }
    return settings


def _rope(file: GGUFFile) -> _Settings:
    kind = file.setting("rope.scaling.type", "none")
    theta = file.setting("rope.freq_base", 10000.0)
    if kind == "none" or LONG_FACTORS in file.tensors:
        return {"rope_theta": theta}
    settings = {
        "rope_theta": theta,
        "rope_type": kind,
        "factor": file.setting("rope.scaling.factor"),
        "original_max_position_embeddings": file.setting("rope.scaling.original_context_length"),
        "beta_fast": file.setting("rope.scaling.yarn_beta_fast"),
        "beta_slow": file.setting("rope.scaling.yarn_beta_slow"),
        "attention_factor": file.setting("rope.scaling.attn_factor"),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _nothing(file: GGUFFile) -> _Settings:
    del file
    return {}


def _smollm3(file: GGUFFile) -> _Settings:
    """Every fourth layer does not rotate, and the files do not say so."""
    del file
    return {"no_rope_layer_interval": 4}


def _phi3(file: GGUFFile) -> _Settings:
    head_dim = _required(file, "embedding_length") // _required(file, "attention.head_count")
    settings: _Settings = {
        "sliding_window": file.setting("attention.sliding_window"),
        "partial_rotary_factor": file.setting("rope.dimension_count", head_dim) / head_dim,
        "original_max_position_embeddings": file.setting("rope.scaling.original_context_length"),
    }
    if LONG_FACTORS in file.tensors:
        settings["rope_parameters"] = {
            "rope_theta": file.setting("rope.freq_base", 10000.0),
            "rope_type": "longrope",
            "long_factor": _vector(file, LONG_FACTORS),
            "short_factor": _vector(file, SHORT_FACTORS),
            "attention_factor": file.setting("rope.scaling.attn_factor"),
        }
    return settings


def _gemma2(file: GGUFFile) -> _Settings:
    return {
        **_gemma(file, is_largest=_required(file, "block_count") == _GEMMA2_LARGEST),
        "attn_logit_softcapping": file.setting("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.setting("final_logit_softcapping", 30.0),
    }


def _gemma3(file: GGUFFile) -> _Settings:
    return {
        **_gemma(file, is_largest=_required(file, "block_count") == _GEMMA3_LARGEST),
        "rope_local_base_freq": file.setting("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": file.setting("final_logit_softcapping"),
    }


def _gemma(file: GGUFFile, *, is_largest: bool) -> _Settings:
    heads, hidden = _required(file, "attention.head_count"), _required(file, "embedding_length")
    settings = {
        "sliding_window": _required(file, "attention.sliding_window"),
        "query_pre_attn_scalar": hidden // heads
        if is_largest
        else _required(file, "attention.key_length"),
    }
    pattern = file.setting("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        return settings | {"layer_types": [kinds[bool(is_windowed)] for is_windowed in pattern]}
    return settings if pattern is None else settings | {"sliding_window_pattern": pattern}


def _required(file: GGUFFile, key: str) -> Any:
    value = _uniform(file, key)
    if value is None:
        raise ModelLoadError(
            f"{file.path} has no {file.architecture}.{key}; convert the model again."
        )
    return value


def _uniform(file: GGUFFile, key: str, default: Any = None) -> Any:
    """A setting that some files list once for each layer."""
    value = file.setting(key, default)
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise ModelLoadError(
            f"{file.path} has layers that differ in {file.architecture}.{key}, which is not "
            "supported."
        )
    return value[0]


def _vector(file: GGUFFile, name: str) -> tuple[float, ...]:
    return tuple(file.read(name).tolist())


_ARCHITECTURES: dict[str, tuple[str, Callable[[GGUFFile], _Settings]]] = {
    "llama": ("LlamaForCausalLM", _nothing),
    "qwen2": ("Qwen2ForCausalLM", _nothing),
    "qwen3": ("Qwen3ForCausalLM", _nothing),
    "smollm3": ("SmolLM3ForCausalLM", _smollm3),
    "phi3": ("Phi3ForCausalLM", _phi3),
    "gemma2": ("Gemma2ForCausalLM", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
}
