"""A decoder layer as data: what a backend that runs whole layers needs to know."""

from dataclasses import dataclass

from torch import Tensor

from astrai_kernels.ops.activation import Activation
from astrai_kernels.ops.weight import Weight


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerPhases:
    """A layer that is exactly the five phases of `astrai_kernels.ops`.

    Attributes:
        attention_norm: ``[hidden]``; None for no norm before attention.
        qkv: from hidden to the heads of queries, keys and values, in this order.
        query_norm: ``[head_dim]``: each query head is normalised before it is rotated; or None.
        key_norm: ``[head_dim]``, alike; there is one where there is a ``query_norm``.
        output: from the query heads to hidden.
        output_norm: ``[hidden]``: of what attention adds to the residual stream; or None.
        mlp_norm: ``[hidden]``; None for no norm before the feed-forward layer.
        gate_up: from hidden to gate rows, then up rows.
        activation: of the gate.
        down: from half of those to hidden.
        down_norm: ``[hidden]``: of what the feed-forward layer adds; or None.
        eps: the epsilon of all norms.
        rotation: which of a step's rotations turns queries and keys; None for none.
        scale: factor on attention scores; None is ``head_dim ** -0.5``.
        softcap: scores are squeezed smoothly to within this, or None.
        window: sliding window in tokens, or None.
    """

    attention_norm: Tensor | None
    qkv: Weight
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    output: Weight
    output_norm: Tensor | None = None
    mlp_norm: Tensor | None
    gate_up: Weight
    activation: Activation = "silu"
    down: Weight
    down_norm: Tensor | None = None
    eps: float
    rotation: int | None = 0
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None
