"""A model's tensors, allocated once in the form the ops want, and the names that fill them."""

from dataclasses import dataclass, field

import torch

from astrai_engine.models.config import ModelConfig
from astrai_kernels.ops import LinearWeight


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Tensors of one decoder layer.

    Attributes:
        attention_norm: ``[hidden]``.
        qkv: queries, keys and values as one projection,
            ``[(num_heads + 2 * num_kv_heads) * head_dim, hidden]``.
        query_norm: ``[head_dim]``, or None.
        key_norm: ``[head_dim]``, or None.
        output: ``[hidden, num_heads * head_dim]``.
        mlp_norm: ``[hidden]``.
        gate_up: gate rows, then up rows, ``[2 * intermediate, hidden]``.
        down: ``[hidden, intermediate]``.
    """

    attention_norm: torch.Tensor
    qkv: LinearWeight
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: LinearWeight
    mlp_norm: torch.Tensor
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Tensors of a whole model, and where each named tensor of a checkpoint goes.

    Attributes:
        embedding: ``[vocab, hidden]``.
        layers: one entry per decoder layer.
        norm: the last norm, ``[hidden]``.
        head: ``[vocab, hidden]``; the embedding's own memory when tied.
        slots: the checkpoint's tensor name to the view its values are copied into. Filling
            every slot fills the model.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: LinearWeight
    slots: dict[str, torch.Tensor] = field(repr=False)


def allocate(config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Reserve memory for a model, uninitialised.

    Args:
        config: its shapes.
        device: where the tensors live.
        dtype: of every tensor.

    Returns:
        Weights whose ``slots`` are still to be filled.
    """
    return _Allocation(config, device, dtype).model()


@dataclass
class _Allocation:
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    slots: dict[str, torch.Tensor] = field(default_factory=dict)

    def model(self) -> ModelWeights:
        config = self.config
        embedding = self._tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = tuple(self._layer(f"model.layers.{i}") for i in range(config.num_layers))
        norm = self._tensor("model.norm.weight", config.hidden_size)
        head = embedding
        if not config.tie_word_embeddings:
            head = self._tensor("lm_head.weight", config.vocab_size, config.hidden_size)
        return ModelWeights(
            embedding=embedding,
            layers=layers,
            norm=norm,
            head=LinearWeight(head, None),
            slots=self.slots,
        )

    def _layer(self, prefix: str) -> LayerWeights:
        config, attention, mlp = self.config, f"{prefix}.self_attn", f"{prefix}.mlp"
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        return LayerWeights(
            attention_norm=self._tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._linear(attention, qkv, hidden, bias=config.qkv_bias),
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._linear(attention, {"o_proj": hidden}, queries, bias=config.output_bias),
            mlp_norm=self._tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._linear(
                mlp, {"gate_proj": inner, "up_proj": inner}, hidden, bias=config.mlp_bias
            ),
            down=self._linear(mlp, {"down_proj": hidden}, inner, bias=config.mlp_bias),
        )

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, device=self.device, dtype=self.dtype)
        self.slots[name] = tensor
        return tensor

    def _head_norm(self, name: str) -> torch.Tensor | None:
        return self._tensor(name, self.config.head_dim) if self.config.qk_norm else None

    def _linear(
        self, prefix: str, rows_of: dict[str, int], columns: int, *, bias: bool
    ) -> LinearWeight:
        """One projection made of several named ones, whose rows follow each other."""
        rows = sum(rows_of.values())
        weight = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        offsets = torch.empty(rows, device=self.device, dtype=self.dtype) if bias else None
        start = 0
        for name, count in rows_of.items():
            self.slots[f"{prefix}.{name}.weight"] = weight[start : start + count]
            if offsets is not None:
                self.slots[f"{prefix}.{name}.bias"] = offsets[start : start + count]
            start += count
        return LinearWeight(weight, offsets)
