"""Quantised weights are the checkpoint's own values, or close to them."""

import pytest
import torch

from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError
from astrai_engine.loading import load_model, resolve_source
from astrai_engine.placement import choose_kv_dtype, choose_precision, use_threads
from astrai_kernels import CpuBackend, native_unavailable_reason
from astrai_kernels.cpu.weights import PackedFormat, PackedWeight
from astrai_kernels.ops import LinearWeight

CPU = torch.device("cpu")
IDS = list(b"The quick brown fox")


@pytest.fixture(autouse=True)
def native_kernels():
    if reason := native_unavailable_reason():
        pytest.skip(reason)


def load(path, precision, **options):
    source = resolve_source(None if path is None else str(path))
    return load_model(source, device=CPU, dtype=torch.float32, precision=precision, **options)


def logits(loaded, paged, **options):
    return paged(loaded.model, **options).step({"a": IDS})


def divergence(wanted, found):
    """Mean Kullback-Leibler divergence of the next-token distributions."""
    wanted, found = wanted.log_softmax(-1), found.log_softmax(-1)
    return (wanted.exp() * (wanted - found)).sum(-1).mean().item()


def test_a_gguf_file_keeps_its_blocks(paged):
    dense, packed = load(None, "none"), load(None, "file")
    assert (dense.precision, packed.precision) == ("none", "file")
    for layer, expected in zip(
        packed.model.weights.layers, dense.model.weights.layers, strict=True
    ):
        assert layer.mlp.gate_up.format is PackedFormat.Q4
        for found, wanted in (
            (layer.qkv, expected.qkv),
            (layer.output, expected.output),
            (layer.mlp.gate_up, expected.mlp.gate_up),
            (layer.mlp.down, expected.mlp.down),
        ):
            torch.testing.assert_close(found.dequantize(), wanted.weight, rtol=1e-5, atol=1e-6)
    assert packed.model.weights.head is packed.model.weights.embedding
    found = logits(packed, paged, backend=CpuBackend(strict=True), kv_dtype=torch.float16)
    assert divergence(logits(dense, paged), found) < 1e-4


def test_int8_activations_are_close(paged):
    coarse = logits(load(None, "file", activation_bits=8), paged)
    assert divergence(logits(load(None, "none"), paged), coarse) < 1e-2


@pytest.mark.parametrize(("precision", "limit"), [("int8", 5e-3), ("int4", 0.5)])
def test_any_checkpoint_can_be_rounded(paged, precision, limit):
    rounded = load(None, precision)
    assert rounded.precision == precision
    layer = rounded.model.weights.layers[0]
    expected = PackedFormat.Q8 if precision == "int8" else PackedFormat.Q4
    assert {layer.qkv.format, layer.mlp.down.format} == {expected}
    assert rounded.model.weights.embedding.format is PackedFormat.Q8
    assert divergence(logits(load(None, "none"), paged), logits(rounded, paged)) < limit


def test_projections_that_are_not_whole_groups_stay_dense(tiny_checkpoint, paged):
    """Rows of 48 and of 96 inputs."""
    loaded = load(tiny_checkpoint, "int8")
    layer = loaded.model.weights.layers[0]
    assert isinstance(layer.qkv, LinearWeight)
    assert isinstance(layer.mlp.down, PackedWeight)
    found = logits(loaded, paged)
    assert divergence(logits(load(tiny_checkpoint, "none"), paged), found) < 1e-2


def test_a_setting_becomes_a_precision(monkeypatch):
    assert choose_precision("auto", CPU, torch.float32) == "file"
    assert choose_precision("none", CPU, torch.float32) == "none"
    assert choose_precision("int4", CPU, torch.float32) == "int4"
    assert choose_precision("auto", CPU, torch.bfloat16) == "none"
    assert choose_precision("auto", torch.device("cuda"), torch.float32) == "none"
    with pytest.raises(ConfigurationError, match=r"'int8'.* need the CPU and float32"):
        choose_precision("int8", CPU, torch.bfloat16)
    monkeypatch.setattr("astrai_engine.placement.native_unavailable_reason", lambda: "no compiler.")
    assert choose_precision("auto", CPU, torch.float32) == "none"
    with pytest.raises(ConfigurationError, match="cannot serve: no compiler"):
        choose_precision("int4", CPU, torch.float32)


def test_a_number_of_threads_that_nobody_heeds_is_refused(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"num_threads is 3.* the device is 'cuda'"):
        use_threads(3, torch.device("cuda"))
    counts = []
    monkeypatch.setattr("astrai_engine.placement.set_num_threads", counts.append)
    monkeypatch.setattr("astrai_engine.placement.native_unavailable_reason", lambda: None)
    use_threads(3, CPU)
    assert counts == [3]
    monkeypatch.setattr("astrai_engine.placement.native_unavailable_reason", lambda: "no compiler.")
    with pytest.raises(ConfigurationError, match=r"no compiler\. Leave num_threads out"):
        use_threads(3, CPU)


def test_the_cache_is_half_precision_beside_quantised_weights():
    assert choose_kv_dtype("auto", CPU, torch.float32, "file") == torch.float16
    assert choose_kv_dtype("auto", CPU, torch.float32, "none") == torch.float32
    assert choose_kv_dtype("float32", CPU, torch.float32, "file") == torch.float32


def test_settings_are_checked():
    with pytest.raises(ConfigurationError, match="num_threads must be at least 1, not 0"):
        EngineConfig(num_threads=0)
