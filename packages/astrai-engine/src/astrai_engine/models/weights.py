"""A model's tensors, in the form the ops want."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch

from astrai_engine.models.parallel import VocabularyPart
from astrai_kernels.cpu.weights import PackedWeight
from astrai_kernels.ops import LinearWeight, Mixture, Weight


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


TableWeight = LinearWeight | PackedWeight | VocabularyPart
"""A weight that serves as a linear layer and as a table."""

Packer = Callable[[Projection], PackedWeight | None]
"""Makes a projection from the checkpoint itself, in another form than dense; None declines."""


@dataclass(frozen=True, kw_only=True)
class GatedWeights:
    """Tensors of a gated feed-forward block.

    Attributes:
        gate_up: gate rows, then up rows, ``[2 * intermediate, hidden]``.
        down: ``[hidden, intermediate]``.
    """

    gate_up: Weight
    down: Weight


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """The weights of a decoder layer's norms; None where a model has no such norm.

    Attributes:
        attention: of what attention reads, ``[hidden]``.
        query: ``[head_dim]``, or of all query heads together.
        key: alike, of the key heads.
        output: of what attention adds to the residual stream, ``[hidden]``.
        mlp: of what the feed-forward block reads, ``[hidden]``.
        down: of what it adds, ``[hidden]``.
    """

    attention: torch.Tensor | None = None
    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    output: torch.Tensor | None = None
    mlp: torch.Tensor | None = None
    down: torch.Tensor | None = None

    def shifted(self, offset: float) -> "LayerNorms":
        """The same norms with weights that are larger by ``offset``."""
        if not offset:
            return self
        weights = {each.name: getattr(self, each.name) for each in fields(self)}
        return LayerNorms(
            **{name: None if w is None else w + offset for name, w in weights.items()}
        )


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Tensors of one decoder layer.

    Attributes:
        norms: the norms.
        qkv: queries, keys and values as one projection,
            ``[(num_heads + 2 * num_kv_heads) * head_dim, hidden]``.
        output: ``[hidden, num_heads * head_dim]``.
        mlp: the feed-forward block, or the mixture of experts in its place.
    """

    norms: LayerNorms
    qkv: Weight
    output: Weight
    mlp: GatedWeights | Mixture


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Tensors of a whole model, and where each named tensor of a checkpoint goes.

    Attributes:
        embedding: ``[vocab, hidden]``.
        layers: one entry per decoder layer.
        norm: the last norm, ``[hidden]``.
        head: ``[vocab, hidden]``; the embedding itself when tied.
        dtype: of activations.
        slots: the checkpoint's tensor name to the view its values are copied into. Filling
            every slot fills the model.
        packed: names of tensors that a packer took, so that nothing is left to fill.
    """

    embedding: TableWeight
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: TableWeight
    dtype: torch.dtype
    slots: dict[str, torch.Tensor] = field(repr=False)
    packed: frozenset[str] = field(repr=False)
