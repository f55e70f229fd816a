"""A model's tensors, allocated once in the form the ops want, and the names that fill them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from astrai_engine.models.config import ModelConfig
from astrai_kernels.cpu.weights import PackedWeight
from astrai_kernels.ops import LinearWeight


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A linear layer made of one or more tensors of a checkpoint, whose rows follow each other.

    Attributes:
        names: the tensors, without their suffix ``.weight`` or ``.bias``.
        rows: rows of each.
        columns: of all.
        has_bias: whether each has a bias too.
        is_gate_up: it is the two halves of a gated feed-forward layer.
        is_table: it is read by rows, as embedding or head.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    has_bias: bool = False
    is_gate_up: bool = False
    is_table: bool = False


AnyWeight = LinearWeight | PackedWeight
"""A weight that serves as a linear layer and as a table."""

Packer = Callable[[Projection], PackedWeight | None]
"""Makes a projection from the checkpoint itself, in another form than dense; None declines."""


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
    qkv: AnyWeight
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: AnyWeight
    mlp_norm: torch.Tensor
    gate_up: AnyWeight
    down: AnyWeight


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Tensors of a whole model, and where each named tensor of a checkpoint goes.

    Attributes:
        embedding: ``[vocab, hidden]``.
        layers: one entry per decoder layer.
        norm: the last norm, ``[hidden]``.
        head: ``[vocab, hidden]``; the embedding itself when tied.
        slots: the checkpoint's tensor name to the view its values are copied into. Filling
            every slot fills the model.
        packed: names of tensors that a packer took, so that nothing is left to fill.
    """

    embedding: AnyWeight
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: AnyWeight
    slots: dict[str, torch.Tensor] = field(repr=False)
    packed: frozenset[str] = field(repr=False)


def allocate(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    packer: Packer | None = None,
) -> ModelWeights:
    """Reserve memory for a model, uninitialised.

    Args:
        config: its shapes.
        device: where the tensors live.
        dtype: of every dense tensor.
        packer: asked for every projection first.

    Returns:
        Weights whose ``slots`` are still to be filled.
    """
    return _Allocation(config, device, dtype, packer).model()


@dataclass
class _Allocation:
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    packer: Packer | None
    slots: dict[str, torch.Tensor] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)

    def model(self) -> ModelWeights:
        config = self.config
        embedding = self._table("model.embed_tokens")
        layers = tuple(self._layer(f"model.layers.{i}") for i in range(config.num_layers))
        norm = self._tensor("model.norm.weight", config.hidden_size)
        head = embedding if config.tie_word_embeddings else self._table("lm_head")
        return ModelWeights(
            embedding=embedding,
            layers=layers,
            norm=norm,
            head=head,
            slots=self.slots,
            packed=frozenset(self.packed),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        config, attention, mlp = self.config, f"{prefix}.self_attn", f"{prefix}.mlp"
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        return LayerWeights(
            attention_norm=self._tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._projection(
                names=tuple(f"{attention}.{name}" for name in ("q_proj", "k_proj", "v_proj")),
                rows=(queries, keys, keys),
                columns=hidden,
                has_bias=config.qkv_bias,
            ),
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._projection(
                names=(f"{attention}.o_proj",),
                rows=(hidden,),
                columns=queries,
                has_bias=config.output_bias,
            ),
            mlp_norm=self._tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._projection(
                names=(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
                rows=(inner, inner),
                columns=hidden,
                has_bias=config.mlp_bias,
                is_gate_up=True,
            ),
            down=self._projection(
                names=(f"{mlp}.down_proj",),
                rows=(hidden,),
                columns=inner,
                has_bias=config.mlp_bias,
            ),
        )

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, device=self.device, dtype=self.dtype)
        self.slots[name] = tensor
        return tensor

    def _head_norm(self, name: str) -> torch.Tensor | None:
        return self._tensor(name, self.config.head_dim) if self.config.qk_norm else None

    def _table(self, name: str) -> AnyWeight:
        config = self.config
        return self._projection(
            names=(name,), rows=(config.vocab_size,), columns=config.hidden_size, is_table=True
        )

    def _projection(self, **description: Any) -> AnyWeight:
        projection = Projection(**description)
        packed = None if self.packer is None else self.packer(projection)
        if packed is None:
            return self._dense(projection)
        suffixes = (".weight", ".bias") if projection.has_bias else (".weight",)
        self.packed |= {name + suffix for name in projection.names for suffix in suffixes}
        return packed

    def _dense(self, projection: Projection) -> LinearWeight:
        rows = sum(projection.rows)
        weight = torch.empty(rows, projection.columns, device=self.device, dtype=self.dtype)
        bias = None
        if projection.has_bias:
            bias = torch.empty(rows, device=self.device, dtype=self.dtype)
        start = 0
        for name, count in zip(projection.names, projection.rows, strict=True):
            self.slots[f"{name}.weight"] = weight[start : start + count]
            if bias is not None:
                self.slots[f"{name}.bias"] = bias[start : start + count]
            start += count
        return LinearWeight(weight, bias)
