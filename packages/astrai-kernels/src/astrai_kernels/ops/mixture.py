"""A mixture of experts: each token goes through the few feed-forward layers that a router picks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from astrai_kernels.ops.activation import Activation
from astrai_kernels.ops.linear import linear
from astrai_kernels.ops.mlp import norm_gate_up
from astrai_kernels.ops.weight import Weight


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixture:
    """The weights of a mixture of experts.

    Attributes:
        router: from hidden to one score for each expert.
        gate_up: of each expert: from hidden to gate rows, then up rows.
        down: of each expert: from half of those to hidden.
        num_chosen: experts that a token goes through.
        normalizes: whether the shares of the chosen ones are made to sum to 1.
    """

    router: Weight
    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    num_chosen: int
    normalizes: bool


def mix_experts(x: Tensor, mixture: Mixture, activation: Activation = "silu") -> Tensor:
    """Send each token through its experts, and add up what they give, each by its share.

    A token's result does not depend on the tokens beside it. Which experts are needed is read on
    the host: on a GPU the call waits for the router.

    Args:
        x: ``[tokens, hidden]``, normalised.
        mixture: the experts.
        activation: of their gates.

    Returns:
        ``[tokens, hidden]`` of ``x``'s dtype.
    """
    scores = linear(x, mixture.router).to(torch.float32).softmax(-1)
    shares, chosen = scores.topk(mixture.num_chosen, -1)
    if mixture.normalizes:
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for expert, tokens, share in _work(shares, chosen, len(mixture.down)):
        inner = norm_gate_up(x[tokens], None, 0.0, mixture.gate_up[expert], activation)
        out.index_add_(0, tokens, linear(inner, mixture.down[expert]) * share.to(x.dtype))
    return out


def _work(shares: Tensor, chosen: Tensor, num_experts: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each expert that is needed, with its tokens ``[n]`` and their shares ``[n, 1]``."""
    experts = chosen.flatten()
    order = experts.argsort(stable=True)
    counts = torch.bincount(experts, minlength=num_experts).tolist()
    tokens = order.div(chosen.shape[1], rounding_mode="floor")
    ordered_shares = shares.flatten()[order].unsqueeze(-1)
    start = 0
    for expert, count in enumerate(counts):
        part = slice(start, start + count)
        if count:
            yield expert, tokens[part], ordered_shares[part]
        start += count
