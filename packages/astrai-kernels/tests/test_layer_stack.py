"""All layers in one native call give what the five phases give one by one."""

from dataclasses import dataclass, replace

import pytest
import torch

from astrai_kernels import (
    AttentionBackend,
    CpuBackend,
    LayerStack,
    ShapeError,
    TorchNativeBackend,
    ops,
)
from astrai_kernels.cpu.pack import pack_blocks, pack_dense
from astrai_kernels.cpu.quantize import quantize_blocks
from astrai_kernels.cpu.weights import BlockFormat
from astrai_kernels.testing import make_rotary, make_step

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 96, 160, 4, 2, 16


@dataclass(frozen=True)
class PlainLayer:
    """The five phases, and nothing else unless told so."""

    layer_id: int
    phases: ops.LayerPhases | None
    given: ops.LayerPhases

    def forward(self, hidden, rotations, cache, backend):
        layer, eps = self.given, self.given.eps
        qkv = ops.norm_linear(hidden, layer.attention_norm, eps, layer.qkv)
        heads = qkv.view(len(qkv), -1, HEAD_DIM)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        if layer.query_norm is not None:
            q, k = ops.rms_norm(q, layer.query_norm, eps), ops.rms_norm(k, layer.key_norm, eps)
        out = backend.attend(
            q,
            k,
            v,
            cache,
            self.layer_id,
            rotary=None if layer.rotation is None else rotations[layer.rotation],
            scale=layer.scale,
            softcap=layer.softcap,
            window=layer.window,
        ).flatten(1)
        hidden = ops.linear_residual(
            out, layer.output, hidden, norm_weight=layer.output_norm, eps=eps
        )
        inner = ops.norm_gate_up(hidden, layer.mlp_norm, eps, layer.gate_up, layer.activation)
        return ops.linear_residual(inner, layer.down, hidden, norm_weight=layer.down_norm, eps=eps)


def pack(rows, columns, **options):
    blocks = quantize_blocks(torch.randn(rows, columns) / columns**0.5, BlockFormat.Q4_1)
    return pack_blocks(blocks, BlockFormat.Q4_1, **options)


def make_layers(**changes):
    layers = []
    for layer_id in range(2):
        phases = ops.LayerPhases(
            attention_norm=torch.rand(HIDDEN),
            qkv=pack((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, bias=torch.randn(128)),
            output=pack_dense(torch.randn(HIDDEN, HEADS * HEAD_DIM) / 8),
            mlp_norm=torch.rand(HIDDEN),
            gate_up=pack(2 * INNER, HIDDEN, paired=True),
            down=pack(HIDDEN, INNER),
            eps=1e-5,
            rotation=0 if layer_id == 0 else None,
            window=None if layer_id == 0 else 5,
        )
        phases = replace(phases, **changes)
        layers.append(PlainLayer(layer_id, phases, phases))
    return layers


def make_inputs(seq_lens, q_lens):
    """A step, without NaN in its cache, and a residual stream."""
    step = make_step(seq_lens, q_lens, heads=(HEADS, KV_HEADS), head_dim=HEAD_DIM)
    for buffer in (step.cache.k_buffer, step.cache.v_buffer):
        buffer.nan_to_num_()
    return step, torch.randn(sum(q_lens), HIDDEN)


def copy_of(cache):
    return replace(cache, k_buffer=cache.k_buffer.clone(), v_buffer=cache.v_buffer.clone())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("seq_lens", "q_lens"), [([7], [1]), ([600, 9, 0, 70], [1, 4, 2, 70]), ([33] * 5, [1] * 5)]
)
def test_one_call_is_bit_for_bit_the_phases(seq_lens, q_lens):
    layers = make_layers(down=pack(HIDDEN, INNER, activation_bits=8))
    step, hidden = make_inputs(seq_lens, q_lens)
    rotations, cache, backend = (make_rotary(step),), copy_of(step.cache), CpuBackend(strict=True)
    stack = LayerStack(layers)
    assert stack.native is not None
    expected = AttentionBackend.run_layers(backend, stack, hidden.clone(), rotations, step.cache)
    out = stack.forward(hidden, rotations, cache, backend)
    assert torch.equal(out, expected)
    assert torch.equal(cache.k_buffer, step.cache.k_buffer)
    assert torch.equal(cache.v_buffer, step.cache.v_buffer)


FEATURES = {
    "a gate of another kind": {"activation": "gelu_tanh"},
    "norms of what is added": {"output_norm": torch.rand(HIDDEN), "down_norm": torch.rand(HIDDEN)},
    "no norms before": {"attention_norm": None, "mlp_norm": None},
    "scaled and capped scores": {"scale": 0.7, "softcap": 2.0},
    "normed heads": {"query_norm": torch.rand(HEAD_DIM), "key_norm": torch.rand(HEAD_DIM)},
    "the second rotation": {"rotation": 1},
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("feature", FEATURES)
def test_one_call_serves_what_families_differ_in(feature):
    """Bit for bit too, but for norms of heads, which are summed in another order."""
    layers = make_layers(**FEATURES[feature])
    step, hidden = make_inputs([70, 9, 3], [1, 4, 1])
    rotations = (make_rotary(step), make_rotary(step, base=50.0))
    cache, backend, stack = copy_of(step.cache), CpuBackend(strict=True), LayerStack(layers)
    assert stack.native is not None
    expected = AttentionBackend.run_layers(backend, stack, hidden.clone(), rotations, step.cache)
    plain = LayerStack(make_layers()).forward(hidden.clone(), rotations, copy_of(cache), backend)
    out = stack.forward(hidden, rotations, cache, backend)
    tolerance = 2e-4 if feature == "normed heads" else 0
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)
    assert not torch.allclose(out, plain, atol=1e-2)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("wanted", [[], [78], [4, 0, 77], [5, 5, 3]])
@pytest.mark.parametrize("feature", ["no norms before", "norms of what is added"])
def test_wanted_tokens_get_what_they_get_among_all(feature, wanted):
    step, hidden = make_inputs([600, 9, 0, 72], [1, 4, 2, 72])
    rotations, cache, backend = (make_rotary(step),), copy_of(step.cache), CpuBackend(strict=True)
    stack = LayerStack(make_layers(**FEATURES[feature]))
    expected = stack.forward(hidden.clone(), rotations, step.cache, backend)
    out = stack.forward(hidden, rotations, cache, backend, wanted=torch.tensor(wanted).long())
    assert torch.equal(out[wanted], expected[wanted])
    assert torch.equal(cache.k_buffer, step.cache.k_buffer)
    assert torch.equal(cache.v_buffer, step.cache.v_buffer)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("wanted", [[-1], [0, 6]])
def test_wanted_tokens_that_there_are_not(wanted):
    step, hidden = make_inputs([6], [6])
    stack, backend = LayerStack(make_layers()), CpuBackend(strict=True)
    with pytest.raises(ShapeError, match="beyond the 6 of the step"):
        stack.forward(
            hidden, (make_rotary(step),), step.cache, backend, wanted=torch.tensor(wanted)
        )


@pytest.mark.usefixtures("kernels")
def test_rotations_that_differ_in_kind_are_served_layer_by_layer():
    step, hidden = make_inputs([9, 5], [2, 5])
    stack = LayerStack(make_layers())
    rotations = (make_rotary(step), make_rotary(step, dim=8))
    expected = stack.forward(hidden.clone(), rotations, copy_of(step.cache), TorchNativeBackend())
    out = stack.forward(hidden, rotations, step.cache, CpuBackend(strict=True))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_what_the_kernel_cannot_run_is_run_layer_by_layer():
    step, hidden = make_inputs([9, 5], [2, 5])
    rotations, reference = (make_rotary(step),), TorchNativeBackend()
    dense = ops.LinearWeight(torch.randn(HIDDEN, HEADS * HEAD_DIM))
    more = [replace(layer, phases=None) for layer in make_layers()]
    unpaired = make_layers(gate_up=pack(2 * INNER, HIDDEN))
    wide_norm = make_layers(mlp_norm=torch.rand(HIDDEN, dtype=torch.float64))
    for layers in (make_layers(output=dense), more, unpaired, wide_norm):
        stack = LayerStack(layers)
        assert stack.native is None
        expected = stack.forward(hidden.clone(), rotations, copy_of(step.cache), reference)
        out = stack.forward(hidden.clone(), rotations, copy_of(step.cache), CpuBackend(strict=True))
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_a_cache_the_kernel_cannot_read_is_read_layer_by_layer():
    step, hidden = make_inputs([9, 5], [2, 5])
    wide = step.cache.k_buffer.double(), step.cache.v_buffer.double()
    cache = replace(step.cache, k_buffer=wide[0], v_buffer=wide[1])
    stack, rotations = LayerStack(make_layers()), (make_rotary(step),)
    expected = stack.forward(hidden.clone(), rotations, step.cache, CpuBackend(strict=True))
    with pytest.warns(match="its cache must be float32"):
        out = stack.forward(hidden.clone(), rotations, cache, CpuBackend())
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_a_cache_with_too_few_layers_is_refused():
    step, hidden = make_inputs([9], [2])
    stack = LayerStack(make_layers() + make_layers())
    with pytest.raises(ShapeError, match="2 layers, and the model 4"):
        stack.forward(hidden, (make_rotary(step),), step.cache, CpuBackend(strict=True))
