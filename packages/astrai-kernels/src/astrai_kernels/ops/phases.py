"""A decoder layer as data: what a backend that runs whole layers needs to know."""

from dataclasses import dataclass

from torch import Tensor

from astrai_kernels.ops.weight import Weight


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerPhases:
    """A layer that is exactly the five phases of `astrai_kernels.ops`.

    Attributes:
        attention_norm: ``[hidden]``.
        qkv: from hidden to the heads of queries, keys and values, in this order.
        output: from the query heads to hidden.
        mlp_norm: ``[hidden]``.
        gate_up: from hidden to gate rows, then up rows.
        down: from half of those to hidden.
        eps: the epsilon of both norms.
        is_rotated: queries and keys are rotated.
        window: sliding window in tokens, or None.
    """

    attention_norm: Tensor
    qkv: Weight
    output: Weight
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight
    eps: float
    is_rotated: bool = True
    window: int | None = None
