import pytest
import torch

from astrai_kernels import PositionError, Rotary, RotaryEmbedding, ShapeError, apply_rotary_emb


def hugging_face_angles(position_ids, dim, base):
    """The arithmetic of transformers' LlamaRotaryEmbedding, in float32."""
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    freqs = (inv_freq[None, :, None] @ position_ids[:, None, :].float()).transpose(1, 2)
    angles = torch.cat((freqs, freqs), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@pytest.mark.parametrize(("dim", "base"), [(64, 100000.0), (128, 10000.0), (80, 500000.0)])
def test_table_equals_hugging_face_bit_for_bit(dim, base):
    position_ids = torch.tensor([[0, 1, 2, 500, 8191]])
    cos, sin = hugging_face_angles(position_ids, dim, base)
    freqs_cis = RotaryEmbedding(dim, 8192, base)(position_ids)
    assert freqs_cis.shape == (1, 5, dim // 2, 2)
    assert freqs_cis.dtype == torch.float32
    assert torch.equal(freqs_cis[..., 0], cos[..., : dim // 2])
    assert torch.equal(freqs_cis[..., 1], sin[..., : dim // 2])


def test_half_split_rotation_equals_hugging_face():
    position_ids = torch.arange(300, 340)[None]
    x = torch.randn(1, 40, 3, 64)
    cos, sin = (part.unsqueeze(2) for part in hugging_face_angles(position_ids, 64, 1e5))
    expected = x * cos + rotate_half(x) * sin
    actual = apply_rotary_emb(x, RotaryEmbedding(64, 512, 1e5)(position_ids), interleaved=False)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_interleaved_rotation_is_complex_multiplication():
    x = torch.randn(5, 3, 16, dtype=torch.float64)
    freqs_cis = RotaryEmbedding(16, 32)(torch.arange(5))
    angle = torch.view_as_complex(freqs_cis.double()).unsqueeze(1)
    expected = torch.view_as_real(torch.view_as_complex(x.view(5, 3, 8, 2)) * angle).flatten(-2)
    actual = apply_rotary_emb(x.float(), freqs_cis)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-6)


def test_layouts_are_permutations_of_each_other():
    x = torch.randn(4, 2, 8)
    freqs_cis = RotaryEmbedding(8, 16)(torch.arange(4))
    halves = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    interleaved = apply_rotary_emb(x, freqs_cis)
    half_split = apply_rotary_emb(halves, freqs_cis, interleaved=False)
    torch.testing.assert_close(
        torch.cat((interleaved[..., ::2], interleaved[..., 1::2]), -1), half_split
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_flow(interleaved):
    x = torch.randn(3, 2, 8, requires_grad=True)
    freqs_cis = RotaryEmbedding(8, 16)(torch.arange(3))
    rotated = apply_rotary_emb(x, freqs_cis, interleaved=interleaved)
    (rotated * rotated).sum().backward()
    # A rotation keeps lengths, so the gradient of the squared length is 2x.
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_low_precision_input_is_rotated_in_float32(interleaved):
    x = torch.randn(3, 2, 64).bfloat16()
    freqs_cis = RotaryEmbedding(64, 512)(torch.tensor([0, 300, 511]))
    actual = apply_rotary_emb(x, freqs_cis, interleaved=interleaved)
    exact = apply_rotary_emb(x.float(), freqs_cis, interleaved=interleaved)
    assert torch.equal(actual, exact.bfloat16())


def test_position_zero_is_the_identity():
    x = torch.randn(1, 2, 8)
    assert torch.equal(apply_rotary_emb(x, RotaryEmbedding(8, 4)(torch.tensor([0]))), x)


def test_positions_may_have_any_shape():
    rotary = RotaryEmbedding(8, 16)
    for shape in [(), (3,), (2, 3), (0,)]:
        assert rotary(torch.zeros(shape, dtype=torch.int64)).shape == (*shape, 4, 2)


def test_int32_positions_are_accepted():
    rotary = RotaryEmbedding(8, 16)
    positions = torch.tensor([3, 0, 15])
    assert torch.equal(rotary(positions.int()), rotary(positions))


@pytest.mark.parametrize("position", [-1, 16])
def test_positions_outside_the_table_are_refused(position):
    with pytest.raises(PositionError, match="16 positions; build RotaryEmbedding with a larger"):
        RotaryEmbedding(8, 16)(torch.tensor([0, position]))


def test_frequencies_and_scaling_can_be_given():
    inv_freq = torch.tensor([1.0, 0.25], dtype=torch.float64)
    rotary = RotaryEmbedding(4, 8, inv_freq=inv_freq, attention_scaling=1.5)
    angles = torch.tensor([2.0, 0.5])
    expected = 1.5 * torch.stack((angles.cos(), angles.sin()), -1)
    torch.testing.assert_close(rotary(torch.tensor(2)), expected)
    assert rotary.freqs_cis.dtype == torch.float32


def test_casting_the_module_does_not_round_the_table():
    rotary = RotaryEmbedding(8, 16)
    before = rotary.freqs_cis.clone()
    rotary.to(torch.bfloat16)
    assert torch.equal(rotary(torch.arange(16)), before)
    assert rotary.state_dict() == {}


def test_table_follows_the_positions_device():
    rotary = RotaryEmbedding(8, 16)
    freqs_cis = rotary(torch.zeros(3, dtype=torch.int64, device="meta"))
    assert freqs_cis.device.type == "meta"
    assert freqs_cis.shape == (3, 4, 2)


@pytest.mark.parametrize("dim", [7, 1])
def test_odd_dimensions_are_refused(dim):
    with pytest.raises(ShapeError, match="even"):
        RotaryEmbedding(dim, 16)


def test_frequencies_of_another_dimension_are_refused():
    with pytest.raises(ShapeError, match=r"\(4,\), half of dim 8, not \(3,\)"):
        RotaryEmbedding(8, 16, inv_freq=torch.ones(3))


@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 2, 6), (3, 8)])
def test_angles_of_another_shape_are_refused(shape):
    rotary = Rotary(RotaryEmbedding(8, 16)(torch.arange(3)), interleaved=False)
    with pytest.raises(ShapeError, match="Cannot rotate"):
        rotary.apply(torch.zeros(shape))
