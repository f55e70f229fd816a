"""What each architecture's code fixes, and its ``config.json`` leaves unsaid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from astrai_engine.errors import ModelLoadError
from astrai_engine.models.config import ExpertsConfig

HFConfig = Mapping[str, Any]
"""A ``config.json``, or the part of one that describes the decoder."""


def rotates(config: HFConfig, layer: int) -> bool:
    """Whether a layer's queries and keys are rotated."""
    given = config.get("no_rope_layers")
    if given is not None:
        return bool(given[layer])
    interval = config.get("no_rope_layer_interval")
    return interval is None or (layer + 1) % interval != 0


def no_windows(config: HFConfig, layer: int) -> bool:
    """No layer has a window."""
    del config, layer
    return False


def all_windows(config: HFConfig, layer: int) -> bool:
    """All layers have the window."""
    del layer
    return bool(config.get("use_sliding_window", True))


def _later_windows(config: HFConfig, layer: int) -> bool:
    return bool(config.get("use_sliding_window") and layer >= config["max_window_layers"])


def _windows_without_rotation(config: HFConfig, layer: int) -> bool:
    return bool(config.get("use_sliding_window")) and not rotates(config, layer)


def _alternate_windows(config: HFConfig, layer: int) -> bool:
    return bool((layer + 1) % config["sliding_window_pattern"])


def _nothing(config: HFConfig) -> dict[str, Any]:
    del config
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """What an architecture's code fixes and its configuration leaves unsaid.

    Attributes:
        defaults: of the configuration, in its names.
        is_windowed: whether a layer has the sliding window, when ``layer_types`` is absent.
        fields: of `ModelConfig`, whatever the configuration says.
        derive: further fields, from the configuration.
        has_phi_rope: rotation of part of a head, and longrope under its older names.
    """

    defaults: HFConfig = field(default_factory=dict)
    is_windowed: Callable[[HFConfig, int], bool] = no_windows
    fields: Mapping[str, Any] = field(default_factory=dict)
    derive: Callable[[HFConfig], dict[str, Any]] = _nothing
    has_phi_rope: bool = False


def _gemma(config: HFConfig) -> dict[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise ModelLoadError(
            "The model attends in both directions (use_bidirectional_attention), which no model "
            "that generates text does; it is not supported."
        )
    return {
        "attention_scale": config["query_pre_attn_scalar"] ** -0.5,
        "embedding_scale": config["hidden_size"] ** 0.5,
        "logit_softcap": config.get("final_logit_softcapping"),
    }


def _gemma2(config: HFConfig) -> dict[str, Any]:
    return _gemma(config) | {"attention_softcap": config.get("attn_logit_softcapping")}


def _granite(config: HFConfig) -> dict[str, Any]:
    """A factor on what layers add is the same as its inverse on the stream they add to.

    Norms undo that inverse, but for their epsilon: so Granite runs as a Llama does.
    """
    added = config["residual_multiplier"]
    return {
        "attention_scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"] / added,
        "rms_norm_eps": config["rms_norm_eps"] / added**2,
        "logit_scale": 1 / config["logits_scaling"],
    }


def _mixtral(config: HFConfig) -> dict[str, Any]:
    return {
        "experts": ExpertsConfig(
            count=config["num_local_experts"],
            num_chosen=config["num_experts_per_tok"],
            intermediate_size=config["intermediate_size"],
            normalizes=True,
        )
    }


def _qwen3_moe(config: HFConfig) -> dict[str, Any]:
    return {
        "experts": ExpertsConfig(
            count=config.get("num_experts") or config["num_local_experts"],
            num_chosen=config["num_experts_per_tok"],
            intermediate_size=config["moe_intermediate_size"],
            normalizes=bool(config.get("norm_topk_prob")),
        )
    }


_GEMMA_FIELDS = {"norms": "around", "norm_offset": 1.0, "are_norms_wide": True}
_GEMMA_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
FAMILIES = {
    "llama": Family(),
    "mistral": Family(
        defaults={"sliding_window": 4096},
        is_windowed=all_windows,
        fields={"qkv_bias": False, "output_bias": False},
    ),
    "qwen2": Family(
        defaults={"sliding_window": 4096, "max_window_layers": 28},
        is_windowed=_later_windows,
        fields={"qkv_bias": True, "output_bias": False},
    ),
    "qwen3": Family(
        defaults={"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        is_windowed=_later_windows,
        fields={"qk_norm": "head"},
    ),
    "smollm3": Family(
        defaults={"no_rope_layer_interval": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
        is_windowed=_windows_without_rotation,
    ),
    "phi3": Family(
        defaults={"original_max_position_embeddings": 4096},
        is_windowed=all_windows,
        fields={"qkv_bias": False, "output_bias": False, "is_fused": True},
        has_phi_rope=True,
    ),
    "gemma2": Family(
        defaults=_GEMMA_DEFAULTS
        | {
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        is_windowed=_alternate_windows,
        fields=_GEMMA_FIELDS,
        derive=_gemma2,
    ),
    "gemma3": Family(
        defaults=_GEMMA_DEFAULTS
        | {
            "sliding_window_pattern": 6,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        is_windowed=_alternate_windows,
        fields=_GEMMA_FIELDS | {"qk_norm": "head"},
        derive=_gemma,
    ),
    "granite": Family(
        defaults={
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
        derive=_granite,
    ),
    "olmo2": Family(fields={"qk_norm": "all", "norms": "after", "are_norms_wide": True}),
    "mixtral": Family(
        defaults={"rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
        is_windowed=all_windows,
        fields={"qkv_bias": False, "output_bias": False},
        derive=_mixtral,
    ),
    "qwen3_moe": Family(
        defaults={"use_sliding_window": False, "decoder_sparse_step": 1},
        is_windowed=all_windows,
        fields={"qk_norm": "head"},
        derive=_qwen3_moe,
    ),
}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "GraniteForCausalLM": "granite",
    "Olmo2ForCausalLM": "olmo2",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Hugging Face's names of what this package runs itself, and ours."""
