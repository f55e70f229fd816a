"""What a gated feed-forward layer does to its gate."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

Activation = Literal["silu", "gelu_tanh"]
"""``gelu_tanh`` is the approximation of GELU by a hyperbolic tangent."""

_FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


def activate(gate: Tensor, activation: Activation) -> Tensor:
    """Apply an activation, element by element."""
    return _FUNCTIONS[activation](gate)
