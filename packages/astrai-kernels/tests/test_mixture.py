"""Each token goes through its own experts."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from astrai_kernels.ops import LinearWeight, Mixture, mix_experts

HIDDEN, INNER, EXPERTS = 16, 24, 5


def make(normalizes=True, num_chosen=2):
    def weight(rows, columns):
        return LinearWeight(torch.randn(rows, columns) / columns**0.5)

    return Mixture(
        router=weight(EXPERTS, HIDDEN),
        gate_up=tuple(weight(2 * INNER, HIDDEN) for _ in range(EXPERTS)),
        down=tuple(weight(HIDDEN, INNER) for _ in range(EXPERTS)),
        num_chosen=num_chosen,
        normalizes=normalizes,
    )


def expected(token, mixture, act):
    """One token, its experts one by one, in float64."""
    token = token.double()
    shares = (mixture.router.weight.double() @ token).softmax(0)
    chosen = shares.topk(mixture.num_chosen).indices.tolist()
    total = sum(shares[i] for i in chosen) if mixture.normalizes else 1.0
    out = torch.zeros(HIDDEN, dtype=torch.float64)
    for i in chosen:
        gate, up = (mixture.gate_up[i].weight.double() @ token).chunk(2)
        out += shares[i] / total * (mixture.down[i].weight.double() @ (act(gate) * up))
    return out


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("num_chosen", [1, 2, EXPERTS])
def test_each_token_goes_through_its_experts(normalizes, num_chosen):
    mixture, x = make(normalizes, num_chosen), torch.randn(9, HIDDEN)
    wanted = torch.stack([expected(token, mixture, F.silu) for token in x])
    torch.testing.assert_close(mix_experts(x, mixture).double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_gate_may_be_another():
    mixture, x = make(), torch.randn(3, HIDDEN)
    wanted = torch.stack([expected(t, mixture, lambda g: F.gelu(g, approximate="tanh")) for t in x])
    actual = mix_experts(x, mixture, "gelu_tanh").double()
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


def test_no_tokens_and_half_precision():
    mixture = make()
    assert mix_experts(torch.randn(0, HIDDEN), mixture).shape == (0, HIDDEN)
    half = Mixture(
        router=LinearWeight(mixture.router.weight.bfloat16()),
        gate_up=tuple(LinearWeight(each.weight.bfloat16()) for each in mixture.gate_up),
        down=tuple(LinearWeight(each.weight.bfloat16()) for each in mixture.down),
        num_chosen=2,
        normalizes=True,
    )
    assert mix_experts(torch.randn(4, HIDDEN).bfloat16(), half).dtype == torch.bfloat16
