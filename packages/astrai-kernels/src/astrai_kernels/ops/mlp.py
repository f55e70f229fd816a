"""The first half of a gated feed-forward layer."""

from torch import Tensor

from astrai_kernels.ops.activation import Activation
from astrai_kernels.ops.weight import Weight


def norm_gate_up(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    gate_up: Weight,
    activation: Activation = "silu",
) -> Tensor:
    """Normalise, project to gate and up, and combine them: SwiGLU, or GeGLU.

    Args:
        x: ``[tokens, hidden]``.
        norm_weight: ``[hidden]``, the scale of `rms_norm`; None does not normalise.
        eps: the epsilon of `rms_norm`.
        gate_up: weight from hidden to 2 x ffn: the gate's rows, then the up projection's.
        activation: of the gate.

    Returns:
        ``[tokens, ffn]`` of ``x``'s dtype: ``activation(gate) * up``.
    """
    return gate_up.norm_gate_up(x, norm_weight, eps, activation)
