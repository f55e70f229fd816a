import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from astrai_kernels.ops import (
    LinearWeight,
    Weight,
    linear,
    linear_residual,
    norm_gate_up,
    norm_linear,
    rms_norm,
)

EPS = 1e-5


def llama_rms_norm(x, weight, eps):
    """The arithmetic of transformers' LlamaRMSNorm."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + eps)).to(x.dtype)


def exact_rms_norm(x, weight):
    x, weight = x.double(), weight.double()
    return weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def test_a_float32_weight_scales_before_the_result_is_rounded():
    """As Gemma's norms do; the other way round loses half a bit."""
    x, weight = (30 * torch.randn(5, 64)).to(torch.bfloat16), torch.rand(64) + 0.5
    exact = exact_rms_norm(x, weight)
    assert torch.equal(rms_norm(x, weight, EPS), exact.to(torch.bfloat16))


@pytest.fixture
def x():
    return torch.randn(7, 24)


@pytest.fixture
def norm_weight():
    return torch.rand(24) + 0.5


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def make_weight(request):
    def make(out_features, in_features):
        bias = torch.randn(out_features) if request.param else None
        return LinearWeight(torch.randn(out_features, in_features), bias)

    return make


def exact_linear(x, weight):
    bias = 0 if weight.bias is None else weight.bias.double()
    return x.double() @ weight.weight.double().t() + bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 576), (5, 3, 64), (0, 16)])
def test_rms_norm_equals_transformers_bit_for_bit(dtype, shape):
    x, weight = (30 * torch.randn(shape)).to(dtype), torch.randn(shape[-1]).to(dtype)
    actual = rms_norm(x, weight, EPS)
    assert actual.dtype == dtype
    assert torch.equal(actual, llama_rms_norm(x, weight, EPS))


def test_rms_norm_survives_values_whose_squares_overflow_half():
    x = torch.full((1, 8), 1000.0, dtype=torch.float16)
    assert torch.equal(rms_norm(x, torch.ones(8, dtype=torch.float16), EPS), torch.ones_like(x))


def test_rms_norm_of_zeros_is_zeros():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), EPS), torch.zeros(2, 8))


def test_linear(x, make_weight):
    weight = make_weight(10, 24)
    assert (weight.out_features, weight.in_features) == (10, 24)
    torch.testing.assert_close(
        linear(x, weight).double(), exact_linear(x, weight), rtol=1e-5, atol=1e-5
    )


def test_norm_linear(x, norm_weight, make_weight):
    weight = make_weight(10, 24)
    expected = exact_linear(exact_rms_norm(x, norm_weight), weight)
    actual = norm_linear(x, norm_weight, EPS, weight)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inference", [False, True])
def test_linear_residual(x, make_weight, inference):
    weight, residual = make_weight(10, 24), torch.randn(7, 10)
    expected = residual.double() + exact_linear(x, weight)
    with torch.inference_mode(inference):
        actual = linear_residual(x, weight, residual)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_linear_residual_of_a_normalised_result(x, make_weight):
    weight, residual, norm = make_weight(16, 24), torch.randn(7, 16), torch.rand(16)
    actual = linear_residual(x, weight, residual.clone(), norm_weight=norm, eps=EPS)
    expected = residual + exact_rms_norm(exact_linear(x, weight), norm)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_phases_without_a_norm(x, make_weight):
    weight = make_weight(16, 24)
    assert torch.equal(norm_linear(x, None, EPS, weight), linear(x, weight))
    gate, up = linear(x, weight).chunk(2, -1)
    assert torch.equal(norm_gate_up(x, None, EPS, weight), F.silu(gate) * up)


def test_norm_gate_up_with_gelu(x, norm_weight, make_weight):
    weight = make_weight(16, 24)
    gate, up = norm_linear(x, norm_weight, EPS, weight).chunk(2, -1)
    actual = norm_gate_up(x, norm_weight, EPS, weight, "gelu_tanh")
    torch.testing.assert_close(actual, F.gelu(gate, approximate="tanh") * up)


def test_linear_residual_is_differentiable(x):
    weight = LinearWeight(torch.randn(10, 24, requires_grad=True))
    residual = torch.randn(7, 10, requires_grad=True)
    linear_residual(x, weight, residual).sum().backward()
    torch.testing.assert_close(weight.weight.grad, x.sum(0).expand(10, 24))
    torch.testing.assert_close(residual.grad, torch.ones(7, 10))


def test_norm_gate_up(x, norm_weight, make_weight):
    gate_up = make_weight(2 * 12, 24)
    gate, up = exact_linear(exact_rms_norm(x, norm_weight), gate_up).chunk(2, -1)
    actual = norm_gate_up(x, norm_weight, EPS, gate_up)
    assert actual.shape == (7, 12)
    torch.testing.assert_close(actual.double(), F.silu(gate) * up, rtol=1e-5, atol=1e-5)


def test_a_new_weight_format_needs_only_its_linear(x, norm_weight):
    class Scaled(Weight):
        in_features = out_features = 24

        def linear(self, x):
            return 2 * x

    weight, normed = Scaled(), rms_norm(x, norm_weight, EPS)
    gate, up = (2 * normed).chunk(2, -1)
    assert torch.equal(norm_linear(x, norm_weight, EPS, weight), 2 * normed)
    assert torch.equal(linear_residual(x, weight, torch.ones(7, 24)), 2 * x + 1)
    torch.testing.assert_close(norm_gate_up(x, norm_weight, EPS, weight), F.silu(gate) * up)
