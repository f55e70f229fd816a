"""Memory for a model's tensors, and the names in a checkpoint of what fills it."""

from dataclasses import dataclass, field
from typing import Any

import torch

from astrai_engine.models.config import ExpertsConfig, LayerConfig, ModelConfig, NormPlacement
from astrai_engine.models.parallel import SummedWeight, VocabularyPart
from astrai_engine.models.share import Share
from astrai_engine.models.weights import (
    GatedWeights,
    LayerNorms,
    LayerWeights,
    ModelWeights,
    Packer,
    Projection,
    TableWeight,
)
from astrai_kernels.cpu.huge_pages import HugePageArena
from astrai_kernels.cpu.weights import PackedWeight
from astrai_kernels.ops import LinearWeight, Mixture, Weight

NORM_NAMES: dict[NormPlacement, dict[str, str]] = {
    "before": {"attention": "input_layernorm", "mlp": "post_attention_layernorm"},
    "after": {"output": "post_attention_layernorm", "down": "post_feedforward_layernorm"},
    "around": {
        "attention": "input_layernorm",
        "output": "post_attention_layernorm",
        "mlp": "pre_feedforward_layernorm",
        "down": "post_feedforward_layernorm",
    },
}
"""What checkpoints call the norms of each placement; the same name is not always the same norm."""

DENSE_NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTURE_NAMES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", DENSE_NAMES),
}
"""What checkpoints call a mixture, and each expert's gate, up and down projection."""


def allocate(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    packer: Packer | None = None,
    share: Share | None = None,
) -> ModelWeights:
    """Reserve memory for a model, uninitialised.

    Args:
        config: its shapes; those of the share where there is one.
        device: where the tensors live.
        dtype: of every dense tensor.
        packer: asked for every projection first.
        share: the part of the model to allocate; None is all.

    Returns:
        Weights whose ``slots`` are still to be filled.
    """
    return _Allocation(config, device, dtype, packer, share).model()


@dataclass
class _Allocation:
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    packer: Packer | None
    share: Share | None
    slots: dict[str, torch.Tensor] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)
    memory: HugePageArena = field(default_factory=HugePageArena)

    def model(self) -> ModelWeights:
        config, prefix = self.config, self.config.weight_prefix
        embedding = self._table(f"{prefix}model.embed_tokens")
        layers = tuple(
            self._layer(f"{prefix}model.layers.{i}", layer) for i, layer in enumerate(config.layers)
        )
        norm = self._norm(f"{prefix}model.norm", config.hidden_size)
        head = embedding if config.tie_word_embeddings else self._table(f"{prefix}lm_head")
        return ModelWeights(
            embedding=embedding,
            layers=layers,
            norm=norm,
            head=head,
            dtype=self.dtype,
            slots=self.slots,
            packed=frozenset(self.packed),
        )

    def _layer(self, prefix: str, layer: LayerConfig) -> LayerWeights:
        config, attention = self.config, f"{prefix}.self_attn"
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        return LayerWeights(
            norms=self._norms(prefix, queries, keys),
            qkv=self._projection(
                **_joined(
                    attention, ("q_proj", "k_proj", "v_proj"), (queries, keys, keys), config, "qkv"
                ),
                columns=config.hidden_size,
                has_bias=config.qkv_bias,
            ),
            output=self._summed(f"{attention}.o_proj", queries, has_bias=config.output_bias),
            mlp=self._mixture(prefix, config.experts)
            if layer.is_sparse and config.experts is not None
            else self._gated(f"{prefix}.mlp", DENSE_NAMES, config.intermediate_size),
        )

    def _norms(self, prefix: str, queries: int, keys: int) -> LayerNorms:
        config = self.config
        norms = {
            place: self._norm(f"{prefix}.{name}", config.hidden_size)
            for place, name in NORM_NAMES[config.norms].items()
        }
        if config.qk_norm is not None:
            is_head = config.qk_norm == "head"
            for place, name, size in (("query", "q_norm", queries), ("key", "k_norm", keys)):
                dim = config.head_dim if is_head else size
                norms[place] = self._norm(f"{prefix}.self_attn.{name}", dim)
        return LayerNorms(**norms)

    def _gated(self, prefix: str, names: tuple[str, str, str], inner: int) -> GatedWeights:
        config, (gate, up, down) = self.config, names
        return GatedWeights(
            gate_up=self._projection(
                **_joined(prefix, (gate, up), (inner, inner), config, "gate_up"),
                columns=config.hidden_size,
                has_bias=config.mlp_bias,
                is_gate_up=True,
            ),
            down=self._summed(f"{prefix}.{down}", inner, has_bias=config.mlp_bias),
        )

    def _mixture(self, prefix: str, experts: ExpertsConfig) -> Mixture:
        block, names = MIXTURE_NAMES[self.config.architecture]
        each = [
            self._gated(f"{prefix}.{block}.experts.{i}", names, experts.intermediate_size)
            for i in range(experts.count)
        ]
        router = Projection(
            names=(f"{prefix}.{block}.gate",),
            rows=(experts.count,),
            columns=self.config.hidden_size,
        )
        return Mixture(
            router=self._dense(router),
            gate_up=tuple(expert.gate_up for expert in each),
            down=tuple(expert.down for expert in each),
            num_chosen=experts.num_chosen,
            normalizes=experts.normalizes,
        )

    def _norm(self, name: str, size: int) -> torch.Tensor:
        dtype = torch.float32 if self.config.are_norms_wide else self.dtype
        return self._vector(f"{name}.weight", size, dtype)

    def _vector(self, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(size, device=self.device, dtype=dtype)
        self.slots[name] = tensor
        return tensor

    def _table(self, name: str) -> TableWeight:
        config, share = self.config, self.share
        rows = config.vocab_size if share is None else len(share.vocabulary)
        table = self._projection(
            names=(name,), rows=(rows,), columns=config.hidden_size, is_table=True
        )
        if share is None:
            return table
        return VocabularyPart(table, share.vocabulary.start, config.vocab_size, share.group)

    def _summed(self, name: str, columns: int, *, has_bias: bool) -> Weight:
        """A projection to the residual stream, whose inputs ranks may share out."""
        size = self.config.hidden_size
        description = {"names": (name,), "rows": (size,), "columns": columns}
        if self.share is None:
            return self._projection(**description, has_bias=has_bias)
        part = self._projection(**description)
        bias = self._vector(f"{name}.bias", size, self.dtype) if has_bias else None
        return SummedWeight(part, bias, self.share.group)

    def _projection(self, **description: Any) -> LinearWeight | PackedWeight:
        projection = Projection(**description)
        packed = None if self.packer is None else self.packer(projection)
        if packed is None:
            return self._dense(projection)
        suffixes = (".weight", ".bias") if projection.has_bias else (".weight",)
        self.packed |= {name + suffix for name in projection.names for suffix in suffixes}
        return packed

    def _dense(self, projection: Projection) -> LinearWeight:
        rows = sum(projection.rows)
        weight = self._matrix(rows, projection.columns)
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

    def _matrix(self, rows: int, columns: int) -> torch.Tensor:
        """On the CPU in huge pages: to fill and to read those is faster."""
        if self.device.type != "cpu":
            return torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        memory = self.memory.zeros(rows * columns * self.dtype.itemsize)
        return memory.view(self.dtype).view(rows, columns)


def _joined(
    prefix: str, names: tuple[str, ...], rows: tuple[int, ...], config: ModelConfig, joint: str
) -> dict[str, Any]:
    """The names and rows of a projection's tensors: one of all rows where they are fused."""
    if config.is_fused:
        return {"names": (f"{prefix}.{joint}_proj",), "rows": (sum(rows),)}
    return {"names": tuple(f"{prefix}.{name}" for name in names), "rows": rows}
