"""What a model is made of, in our own names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from astrai_engine.models.rope import RopeConfig
from astrai_kernels.ops import Activation

NormPlacement = Literal["before", "after", "around"]
"""Where a layer's two blocks are normalised: what they read, what they add to the residual
stream, or both."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What differs from layer to layer.

    Attributes:
        window: how many tokens back a token sees, itself included; None is all.
        rotary: whether queries and keys are rotated.
        rope: how, where it is another way than the model's.
        is_sparse: the feed-forward block is the model's mixture of experts.
    """

    window: int | None = None
    rotary: bool = True
    rope: RopeConfig | None = None
    is_sparse: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts in the place of a feed-forward block.

    Attributes:
        count: experts of a layer.
        num_chosen: experts that each token goes through.
        intermediate_size: dimensions inside an expert.
        normalizes: whether the shares of the chosen ones are made to sum to 1.
    """

    count: int
    num_chosen: int
    intermediate_size: int
    normalizes: bool


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
        max_seq_len: the longest context it can serve, in tokens.
        rms_norm_eps: added to the mean square in every norm.
        rope: how positions become angles.
        layers: one entry per layer.
        qkv_bias: whether the query, key and value projections add a bias.
        output_bias: whether the projection after attention adds one.
        mlp_bias: whether the feed-forward projections add one.
        is_fused: the checkpoint keeps queries, keys and values as one tensor, and so the two
            halves of the gated feed-forward block.
        qk_norm: queries and keys are normed before rotation: each ``head``, or ``all`` of a
            token's heads together; None for no norm.
        norms: where norms are.
        norm_offset: added to every norm's weight, which the checkpoint keeps without it.
        are_norms_wide: norms scale in float32, whatever the model's dtype.
        activation: of the feed-forward block's gate.
        experts: the mixture of the layers that have one.
        embedding_scale: factor on embeddings.
        attention_scale: factor on attention scores; None is ``head_dim ** -0.5``.
        attention_softcap: attention scores are squeezed smoothly to within this, or None.
        logit_scale: factor on logits.
        logit_softcap: logits are squeezed smoothly to within this, or None.
        tie_word_embeddings: the head is the embedding.
        weight_prefix: of the names of all tensors; others belong to parts that are not served.
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
    is_fused: bool = False
    qk_norm: Literal["head", "all"] | None = None
    norms: NormPlacement = "before"
    norm_offset: float = 0.0
    are_norms_wide: bool = False
    activation: Activation = "silu"
    experts: ExpertsConfig | None = None
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    tie_word_embeddings: bool = False
    weight_prefix: str = ""
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Translate a Hugging Face ``config.json``: the one place that knows its names.

        Args:
            config: the parsed file.

        Returns:
            The same model in our names.

        Raises:
            UnsupportedArchitectureError: the architecture is not one of ours.
            ModelLoadError: a setting is not supported, or one is missing.
        """
        # Here, and not above: the translation makes what this module defines.
        from astrai_engine.models.hf_config import translate  # noqa: PLC0415

        return translate(config)

    @property
    def default_seq_len(self) -> int:
        """The context served when nobody asks for another, in tokens."""
        return self.rope.trained_seq_len(self.max_seq_len)

    def with_rope(self, **changes: Any) -> "ModelConfig":
        """The same model with other settings of its ``rope``."""
        return replace(self, rope=replace(self.rope, **changes))


def token_ids(value: Any) -> frozenset[int]:
    """The ids in a field that holds one id, a list of ids, or nothing."""
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, (list, tuple)) else frozenset((value,))
