"""What a model is made of, in our own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astrai_engine.errors import ModelLoadError
from astrai_engine.models.rope import RopeConfig


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What differs from layer to layer.

    Attributes:
        window: how many tokens back a token sees, itself included; None is all.
        rotary: whether queries and keys are rotated.
    """

    window: int | None = None
    rotary: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only model of the Llama family.

    Attributes:
        architecture: the family's short name, such as ``llama`` or ``qwen3``.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: dimensions of a head; need not be ``hidden_size / num_heads``.
        hidden_size: dimensions of the residual stream.
        intermediate_size: dimensions inside the feed-forward block.
        vocab_size: rows of the embedding and of the logits.
        max_seq_len: context in tokens.
        rms_norm_eps: added to the mean square in every norm.
        rope: how positions become angles.
        layers: one entry per layer.
        qkv_bias: whether the query, key and value projections add a bias.
        output_bias: whether the projection after attention adds one.
        mlp_bias: whether the feed-forward projections add one.
        qk_norm: whether each head's query and key are normed before rotation.
        tie_word_embeddings: the head is the embedding.
        eos_token_ids: end-of-sequence ids the configuration names.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int
    rms_norm_eps: float
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Translate a Hugging Face ``config.json``: the one place that knows its names.

        Args:
            config: the parsed file.

        Returns:
            The same model in our names.

        Raises:
            ModelLoadError: the architecture or a setting is not supported, or one is missing.
        """
        family = _family(config)
        try:
            return _translate(config, family)
        except KeyError as error:
            raise ModelLoadError(
                f"The model's configuration has no {error.args[0]!r}; "
                "config.json of a complete checkpoint has it."
            ) from error


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What an architecture's code fixes and its configuration leaves unsaid."""

    qkv_bias: bool | None = None  # None: as ``attention_bias`` says
    output_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None  # None: hidden_size / num_heads
    windows: str = "none"  # "all" layers, "typed" by ``layer_types``, or "none"
    tied: bool = False


_FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(qkv_bias=False, output_bias=False, windows="all"),
    "qwen2": _Family(qkv_bias=True, output_bias=False, windows="typed"),
    "qwen3": _Family(qk_norm=True, head_dim=128, windows="typed"),
    "smollm3": _Family(windows="typed", tied=True),
}
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}


def _family(config: Mapping[str, Any]) -> str:
    named = list(config.get("architectures") or [])
    for architecture in named:
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    model_type = config.get("model_type")
    if not named and model_type in _FAMILIES:
        return str(model_type)
    raise ModelLoadError(
        f"Architecture {', '.join(named) or model_type or 'unknown'} is not supported; "
        f"supported are {', '.join(_ARCHITECTURES)}."
    )


def _translate(config: Mapping[str, Any], architecture: str) -> ModelConfig:
    family = _FAMILIES[architecture]
    activation = config.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"Activation {activation!r} is not supported; supported is silu.")
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"The model's {num_heads} query heads cannot share {num_kv_heads} key and value heads "
            "evenly."
        )
    attention_bias = bool(config.get("attention_bias"))
    head_dim = config.get("head_dim") or family.head_dim or config["hidden_size"] // num_heads
    return ModelConfig(
        architecture=architecture,
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_seq_len=config["max_position_embeddings"],
        rms_norm_eps=config["rms_norm_eps"],
        rope=RopeConfig.from_hf(config),
        layers=_layers(config, family),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=family.qk_norm,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", family.tied)),
        eos_token_ids=token_ids(config.get("eos_token_id")),
    )


def _layers(config: Mapping[str, Any], family: _Family) -> tuple[LayerConfig, ...]:
    count = config["num_hidden_layers"]
    rotary = config.get("no_rope_layers") or [1] * count
    return tuple(
        LayerConfig(window=window, rotary=bool(rotates))
        for window, rotates in zip(_windows(config, family, count), rotary, strict=True)
    )


def _windows(config: Mapping[str, Any], family: _Family, count: int) -> list[int | None]:
    window = config.get("sliding_window")
    if window is None or family.windows == "none":
        return [None] * count
    if family.windows == "all":
        return [window] * count
    if not config.get("use_sliding_window"):
        return [None] * count
    types = config.get("layer_types")
    if types is None:
        first = config.get("max_window_layers") or 0
        return [window if layer >= first else None for layer in range(count)]
    return [window if kind == "sliding_attention" else None for kind in types]


def token_ids(value: Any) -> frozenset[int]:
    """The ids in a field that holds one id, a list of ids, or nothing."""
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, (list, tuple)) else frozenset((value,))
