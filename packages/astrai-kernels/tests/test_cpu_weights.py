"""Packed weights serve every phase with the values they were made of."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from astrai_kernels import ShapeError, ops
from astrai_kernels.cpu.pack import pack_blocks, pack_dense
from astrai_kernels.cpu.quantize import quantize_blocks
from astrai_kernels.cpu.weights import BlockFormat, PackedFormat

pytestmark = pytest.mark.usefixtures("kernels")

EPS = 1e-5
BLOCKS = list(BlockFormat)
# How far results may be from float64, as a part of the largest.
EXACT, COARSE = 1e-4, 2e-2


def random_blocks(rows, in_features, kind):
    """Blocks of every bit pattern, with scales and minima as models have them."""
    generator = np.random.default_rng(0)
    groups = in_features // 32
    blocks = generator.integers(0, 256, (rows, groups, kind.block_bytes), np.uint8)
    header = 4 if kind is BlockFormat.Q4_1 else 2
    scales = generator.uniform(-0.1, 0.1, (rows, groups, header // 2)).astype(np.float16)
    blocks[..., :header] = scales.view(np.uint8)
    return torch.from_numpy(blocks.reshape(rows, -1))


def decode(blocks, kind):
    """The values of GGUF blocks, by their definition."""
    groups = blocks.numpy().reshape(len(blocks), -1, kind.block_bytes)
    scale = groups[..., :2].copy().view(np.float16).astype(np.float32)
    if kind is BlockFormat.Q8_0:
        return torch.from_numpy(scale * groups[..., 2:].view(np.int8)).flatten(1)
    nibbles = groups[..., 4 if kind is BlockFormat.Q4_1 else 2 :]
    integers = np.concatenate((nibbles & 15, nibbles >> 4), -1).astype(np.float32)
    if kind is BlockFormat.Q4_0:
        return torch.from_numpy(scale * (integers - 8)).flatten(1)
    minimum = groups[..., 2:4].copy().view(np.float16).astype(np.float32)
    return torch.from_numpy(scale * integers + minimum).flatten(1)


def make(kind, rows, in_features, *, bias=False, **options):
    """A packed weight, its values and its bias in float64."""
    offsets = torch.randn(rows) if bias else None
    if isinstance(kind, BlockFormat):
        blocks = random_blocks(rows, in_features, kind)
        weight = pack_blocks(blocks, kind, bias=offsets, **options)
        values = decode(blocks, kind)
    else:
        values = torch.randn(rows, in_features)
        weight = pack_dense(values, bias=offsets, packed=kind, **options)
        if kind is PackedFormat.BF16:
            values = values.to(torch.bfloat16)
    return weight, values.double(), 0 if offsets is None else offsets.double()


def check(actual, expected, tolerance=EXACT):
    assert actual.isfinite().all()
    assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


def exact_norm(x, weight):
    x = x.double()
    return weight.double() * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("paired", [False, True])
def test_values_of_a_file_are_kept_exactly(kind, paired):
    blocks = random_blocks(74, 96, kind)
    weight = pack_blocks(blocks, kind, paired=paired)
    torch.testing.assert_close(weight.dequantize(), decode(blocks, kind), rtol=2e-7, atol=1e-8)


@pytest.mark.parametrize("kind", [PackedFormat.F32, PackedFormat.BF16])
def test_dense_values_are_kept(kind):
    values = torch.randn(37, 30)
    expected = values if kind is PackedFormat.F32 else values.to(torch.bfloat16).float()
    assert torch.equal(pack_dense(values, packed=kind).dequantize(), expected)


@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32, PackedFormat.BF16])
@pytest.mark.parametrize(("rows", "in_features"), [(9, 32), (37, 96), (16, 64), (130, 576)])
def test_linear_equals_the_reference(kind, rows, in_features):
    weight, values, bias = make(kind, rows, in_features, bias=True)
    for num in (1, 2, 3, 4, 7, 33):
        x = torch.randn(num, in_features)
        check(ops.linear(x, weight), x.double() @ values.t() + bias)


@pytest.mark.parametrize("bits", [8, 16])
def test_many_rows(bits):
    weight, values, _ = make(BlockFormat.Q4_1, 200, 1536, activation_bits=bits)
    x = torch.randn(600, 1536)
    check(ops.linear(x, weight), x.double() @ values.t(), EXACT if bits == 16 else COARSE)


@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32, PackedFormat.BF16])
@pytest.mark.parametrize(
    ("num", "in_features"), [(23, 64), (48, 672), (53, 32), (200, 64), (395, 576)]
)
def test_a_row_does_not_depend_on_those_beside_it(kind, num, in_features):
    weight, _, _ = make(kind, 96, in_features)
    x, norm = torch.randn(num, in_features), torch.ones(in_features)
    together = weight.norm_linear(x, norm, EPS)
    for first in range(0, num, 5):
        alone = weight.norm_linear(x[first : first + 1], norm, EPS)
        assert torch.equal(alone[0], together[first])


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32])
def test_norm_linear(kind, bits):
    options = {"activation_bits": bits} if isinstance(kind, BlockFormat) else {}
    weight, values, bias = make(kind, 40, 64, bias=True, **options)
    x, norm = 30 * torch.randn(5, 64), torch.rand(64) + 0.5
    expected = exact_norm(x, norm) @ values.t() + bias
    check(ops.norm_linear(x, norm, EPS, weight), expected, EXACT if bits == 16 else COARSE)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32, PackedFormat.BF16])
@pytest.mark.parametrize(("out", "bias"), [(5, False), (16, True), (74, True), (5000, False)])
def test_the_likeliest_output_is_that_of_all_outputs(kind, bits, out, bias):
    options = {"activation_bits": bits} if isinstance(kind, BlockFormat) else {}
    weight, _, _ = make(kind, out, 64, bias=bias, **options)
    for num in (0, 1, 7, 60, 250):
        x, norm = torch.randn(num, 64), torch.rand(64) + 0.5
        for scale in (norm, None):
            expected = ops.likeliest(ops.norm_linear(x, scale, EPS, weight))
            assert ops.likeliest_output(x, scale, EPS, weight) == expected


def test_of_equal_outputs_the_first_is_the_likeliest():
    values = torch.randn(400, 32)
    values[[7, 130, 131, 399]] = values.amax(0)
    x = torch.rand(3, 32)
    weight = pack_dense(values)
    assert ops.likeliest_output(x, None, EPS, weight)[1] == [7, 7, 7]
    assert ops.likeliest_output(x, None, EPS, pack_dense(values[8:]))[1] == [122, 122, 122]
    zeros = pack_dense(torch.zeros(400, 32))
    assert ops.likeliest_output(x, None, EPS, zeros) == ([0.0] * 3, [0] * 3)


@pytest.mark.parametrize("place", [0, 9, 200, 402])
def test_nan_and_infinity_are_the_likeliest_output_too(place):
    values = torch.randn(403, 32)
    values[place] = torch.inf
    x = torch.rand(60, 32)
    x[1:] *= 0.0  # infinity times zero is NaN
    best, columns = ops.likeliest_output(x, None, EPS, pack_dense(values))
    assert columns == [place] * 60
    assert best[0] == torch.inf
    assert all(value != value for value in best[1:])
    lowest = pack_dense(torch.full((403, 32), -torch.inf))
    assert ops.likeliest_output(x[:1], None, EPS, lowest) == ([-torch.inf], [0])
    best, columns = ops.likeliest_output(x[1:], None, EPS, lowest)
    assert columns == [0] * 59
    assert all(value != value for value in best)


def test_the_likeliest_output_of_half_precision_is_that_of_its_rounded_outputs():
    weight = pack_dense(torch.randn(3000, 64))
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    expected = ops.likeliest(ops.linear(x, weight).float())
    assert ops.likeliest_output(x, None, EPS, weight) == expected


@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.BF16])
@pytest.mark.parametrize("num", [5, 50])
def test_linear_residual_updates_the_residual(kind, num):
    weight, values, bias = make(kind, 40, 64, bias=True)
    x, residual = torch.randn(num, 64), torch.randn(num, 40)
    expected = residual.double() + x.double() @ values.t() + bias
    total = ops.linear_residual(x, weight, residual)
    check(total, expected)
    assert total.data_ptr() == residual.data_ptr()


@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32])
@pytest.mark.parametrize("ffn", [8, 20, 96])
@pytest.mark.parametrize("num", [6, 50])
def test_norm_gate_up(kind, ffn, num):
    weight, values, bias = make(kind, 2 * ffn, 64, bias=True, paired=True)
    x, norm = torch.randn(num, 64), torch.rand(64) + 0.5
    gate, up = (exact_norm(x, norm) @ values.t() + bias).chunk(2, -1)
    check(ops.norm_gate_up(x, norm, EPS, weight), F.silu(gate) * up, 2 * EXACT)


def test_norm_gate_up_with_gelu():
    gate_up = torch.randn(2 * 40, 64) / 8
    weight = pack_dense(gate_up, paired=True)
    x, norm = torch.randn(5, 64), torch.rand(64)
    gate, up = (ops.rms_norm(x, norm, EPS).double() @ gate_up.double().t()).chunk(2, -1)
    expected = F.gelu(gate, approximate="tanh") * up
    check(ops.norm_gate_up(x, norm, EPS, weight, "gelu_tanh"), expected)


def test_linear_residual_of_a_normalised_result():
    values = torch.randn(24, 64) / 8
    weight, x, norm = pack_dense(values), torch.randn(5, 64), torch.rand(24)
    residual = torch.randn(5, 24)
    added = x.double() @ values.double().t()
    expected = residual.double() + ops.rms_norm(added, norm.double(), EPS)
    total = ops.linear_residual(x, weight, residual.clone(), norm_weight=norm, eps=EPS)
    check(total, expected)
    with pytest.raises(ShapeError, match="norm must be"):
        ops.linear_residual(x, weight, residual, norm_weight=norm[1:], eps=EPS)


def test_norm_gate_up_of_a_weight_that_is_not_paired():
    weight, values, _ = make(BlockFormat.Q8_0, 40, 64)
    x, norm = torch.randn(6, 64), torch.ones(64)
    gate, up = (exact_norm(x, norm) @ values.t()).chunk(2, -1)
    check(ops.norm_gate_up(x, norm, EPS, weight), F.silu(gate) * up)


def test_extreme_activations():
    weight, values, _ = make(BlockFormat.Q4_1, 48, 64)
    x = torch.randn(4, 64)
    x[0], x[1, 5], x[2] = 0.0, 1e4, 1e-20
    expected = x.double() @ values.t()
    actual = weight.linear(x)
    assert torch.equal(actual[0], torch.zeros(48))
    for row in (1, 2, 3):
        check(actual[row], expected[row])


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", [*BLOCKS, PackedFormat.F32, PackedFormat.BF16])
@pytest.mark.parametrize("num", [12, 60])
@pytest.mark.parametrize("place", [0, 13, 37, 95])
def test_nan_and_infinity_spoil_their_row_alone(kind, bits, num, place):
    """A number that was lost has to show: a request with one fails, instead of telling nonsense."""
    options = {"activation_bits": bits} if isinstance(kind, BlockFormat) else {}
    weight, _, _ = make(kind, 48, 96, **options)
    x = torch.randn(num, 96)
    expected = weight.linear(x)
    spoilt = x.clone()
    for row, value in ((2, torch.nan), (5, torch.inf), (9, -torch.inf)):
        spoilt[row, place] = value
    actual = weight.linear(spoilt)
    lost = torch.tensor([2, 5, 9])
    if isinstance(kind, BlockFormat):
        assert actual[lost].isnan().all()
    assert not actual[lost].isfinite().any()
    kept = torch.ones(num, dtype=torch.bool)
    kept[lost] = False
    assert torch.equal(actual[kept], expected[kept])


def test_other_dtypes_and_strides():
    weight, values, _ = make(BlockFormat.Q8_0, 32, 64)
    wide = torch.randn(6, 128)
    check(weight.linear(wide[:, ::2]), wide[:, ::2].double() @ values.t())
    half = wide[:, :64].to(torch.bfloat16)
    assert weight.linear(half).dtype == torch.bfloat16
    check(weight.linear(half), half.double() @ values.t(), 1e-2)
    residual = torch.zeros(6, 32, dtype=torch.float16)
    check(weight.linear_residual(half, residual), half.double() @ values.t(), 1e-2)


def test_no_rows_give_no_results():
    weight, _, _ = make(BlockFormat.Q4_0, 32, 64)
    assert weight.linear(torch.empty(0, 64)).shape == (0, 32)


def test_embedding_reads_rows():
    weight, values, _ = make(BlockFormat.Q8_0, 300, 64)
    ids = torch.tensor([[5, 299], [0, 5]])
    rows = ops.embedding(ids, weight)
    torch.testing.assert_close(rows.double(), values[ids], rtol=1e-6, atol=1e-7)
    for bad in (-1, 300):
        with pytest.raises(IndexError, match="300 rows"):
            ops.embedding(torch.tensor([0, bad]), weight)


@pytest.mark.parametrize(("kind", "steps"), [(BlockFormat.Q8_0, 254), (BlockFormat.Q4_1, 15)])
def test_rounding_is_to_the_nearest_step(kind, steps):
    values = torch.randn(24, 96)
    values[3, 32:64] = 0.0
    values[4, :32] = 2.5
    weight = pack_blocks(quantize_blocks(values, kind), kind)
    groups = values.view(24, 3, 32)
    spread = groups.amax(-1) - groups.amin(-1)
    if kind is BlockFormat.Q8_0:
        spread = 2 * groups.abs().amax(-1)
    error = (weight.dequantize() - values).view(24, 3, 32).abs().amax(-1)
    assert (error <= spread / steps * 0.5 + 2e-3 * groups.abs().amax(-1)).all()
    assert torch.equal(weight.dequantize()[3, 32:64], torch.zeros(32))


def test_misfits_are_refused():
    weight, _, _ = make(BlockFormat.Q4_1, 32, 64)
    paired, _, _ = make(BlockFormat.Q4_1, 32, 64, paired=True)
    blocks, values = random_blocks(3, 64, BlockFormat.Q4_1), torch.randn(3, 33)
    x = torch.randn(2, 64)
    for refused in (
        lambda: weight.linear(torch.randn(2, 63)),
        lambda: weight.norm_linear(x, torch.ones(63), EPS),
        lambda: weight.linear_residual(x, torch.zeros(2, 31)),
        lambda: weight.likeliest_output(torch.randn(2, 63), None, EPS),
        lambda: weight.likeliest_output(x[0], None, EPS),
        lambda: weight.likeliest_output(x.expand(3, 2, 64), None, EPS),
        lambda: weight.likeliest_output(x, torch.ones(63), EPS),
        lambda: paired.likeliest_output(x, None, EPS),
        lambda: paired.linear(x),
        lambda: paired.linear_residual(x, torch.zeros(2, 32)),
        lambda: pack_blocks(blocks[:, 1:], BlockFormat.Q4_1),
        lambda: pack_blocks(blocks.to(torch.int8), BlockFormat.Q4_1),
        lambda: pack_blocks(blocks, BlockFormat.Q4_1, paired=True),
        lambda: pack_blocks(blocks, BlockFormat.Q4_1, bias=torch.ones(4)),
        lambda: pack_blocks(blocks, BlockFormat.Q4_1, activation_bits=4),
        lambda: pack_dense(values, packed=PackedFormat.BF16),
        lambda: pack_dense(values, packed=PackedFormat.Q4),
        lambda: quantize_blocks(values, BlockFormat.Q8_0),
        lambda: quantize_blocks(torch.randn(3, 32), BlockFormat.Q4_0),
    ):
        with pytest.raises(ShapeError):
            refused()
