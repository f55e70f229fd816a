"""Hugging Face's ``config.json`` in our names."""

from difflib import get_close_matches
from typing import Any

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.models.config import LayerConfig, ModelConfig, token_ids
from astrai_engine.models.families import (
    ARCHITECTURES,
    FAMILIES,
    Family,
    HFConfig,
    all_windows,
    no_windows,
    rotates,
)
from astrai_engine.models.rope import RopeConfig
from astrai_kernels.ops import Activation

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def translate(config: HFConfig) -> ModelConfig:
    """Translate a ``config.json``.

    Args:
        config: the parsed file.

    Raises:
        UnsupportedArchitectureError: the architecture is not one of ours.
        ModelLoadError: a setting is not supported, or one is missing.
    """
    architecture = _architecture(config)
    family, text = FAMILIES[architecture], config.get("text_config")
    settings = {**family.defaults, **config}
    if text is not None:  # a model that also sees: the decoder's settings lie in their own part
        settings = {**family.defaults, **text, "eos_token_id": _eos(config, text)}
    try:
        fields = _fields(settings, architecture, family)
    except KeyError as error:
        raise ModelLoadError(
            f"The model's configuration has no {error.args[0]!r}; "
            "config.json of a complete checkpoint has it."
        ) from error
    except (IndexError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ModelLoadError(
            f"The model's configuration cannot be read ({error}); download its config.json again."
        ) from error
    return ModelConfig(**fields, weight_prefix="" if text is None else "language_model.")


def _architecture(config: HFConfig) -> str:
    named = list(config.get("architectures") or [])
    for architecture in named:
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    model_type = config.get("model_type")
    if not named and model_type in FAMILIES:
        return str(model_type)
    name = ", ".join(named) or model_type or "unknown"
    nearest = get_close_matches(name, ARCHITECTURES, n=1)
    hint = f"the nearest supported one is {nearest[0]}, and all are" if nearest else "supported are"
    raise UnsupportedArchitectureError(
        f"Architecture {name} is not supported; {hint} {', '.join(ARCHITECTURES)}."
    )


def _eos(config: HFConfig, text: HFConfig) -> list[int]:
    return sorted(token_ids(config.get("eos_token_id")) | token_ids(text.get("eos_token_id")))


def _fields(config: HFConfig, architecture: str, family: Family) -> dict[str, Any]:
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if activation not in _ACTIVATIONS:
        raise ModelLoadError(
            f"Activation {activation!r} is not supported; supported are {', '.join(_ACTIVATIONS)}."
        )
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"The model's {num_heads} query heads cannot share {num_kv_heads} key and value heads "
            "evenly."
        )
    attention_bias = bool(config.get("attention_bias"))
    derived, rope = family.derive(config), _rope(config, family)
    return {
        "architecture": architecture,
        "num_layers": config["num_hidden_layers"],
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // num_heads,
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "max_seq_len": rope.longest_seq_len(config["max_position_embeddings"]),
        "rms_norm_eps": config["rms_norm_eps"],
        "rope": rope,
        "layers": _layers(config, family, has_experts="experts" in derived),
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": bool(config.get("mlp_bias")),
        "activation": _ACTIVATIONS[activation],
        "tie_word_embeddings": bool(config.get("tie_word_embeddings")),
        "eos_token_ids": token_ids(config.get("eos_token_id")),
        **family.fields,
        **derived,
    }


def _rope(config: HFConfig, family: Family) -> RopeConfig:
    """The settings of most layers: where there are two sets, of those that see everything."""
    parameters = config.get("rope_parameters") or {}
    if "full_attention" in parameters:
        config = {**config, "rope_parameters": parameters["full_attention"]}
    rope = RopeConfig.from_hf(config, is_yarn_longrope=family.has_phi_rope)
    if rope.rotated_share != 1.0 and not family.has_phi_rope:
        raise ModelLoadError(
            f"Rotating only part of a head (partial_rotary_factor {rope.rotated_share}) is not "
            "supported in models of this architecture."
        )
    return rope


def _local_rope(config: HFConfig) -> RopeConfig | None:
    """The settings of layers with a window, where those have their own."""
    parameters = config.get("rope_parameters") or {}
    if "sliding_attention" in parameters:
        return RopeConfig.from_hf(
            {
                **config,
                "rope_theta": config.get("rope_local_base_freq"),
                "rope_parameters": parameters["sliding_attention"],
            }
        )
    theta = config.get("rope_local_base_freq")
    return None if theta is None else RopeConfig(theta=theta)


def _layers(config: HFConfig, family: Family, *, has_experts: bool) -> tuple[LayerConfig, ...]:
    window, local_rope = config.get("sliding_window"), _local_rope(config)
    layers = []
    for layer in range(config["num_hidden_layers"]):
        is_local = _is_windowed(config, family, layer)
        layers.append(
            LayerConfig(
                window=window if is_local else None,
                rotary=rotates(config, layer),
                rope=local_rope if is_local else None,
                is_sparse=has_experts and _is_sparse(config, layer),
            )
        )
    return tuple(layers)


def _is_windowed(config: HFConfig, family: Family, layer: int) -> bool:
    types = config.get("layer_types")
    if types is None or family.is_windowed in (no_windows, all_windows):
        return family.is_windowed(config, layer)
    if types[layer] not in ("full_attention", "sliding_attention"):
        raise ModelLoadError(
            f"Layer {layer} is of type {types[layer]!r}; supported are full_attention and "
            "sliding_attention."
        )
    return bool(types[layer] == "sliding_attention" and config.get("use_sliding_window", True))


def _is_sparse(config: HFConfig, layer: int) -> bool:
    """Whether a layer is a mixture, in a model that has one."""
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    return bool((layer + 1) % (config.get("decoder_sparse_step") or 1) == 0)
