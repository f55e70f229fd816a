"""Checkpoints that others have quantised are read to the values they stand for."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading import safetensors
from astrai_engine.loading.checkpoint import Checkpoint
from astrai_engine.loading.dense_view import dense_view
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.models import allocate

GROUP = 16
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ puts these of eight neighbours into the bits of an integer, from the lowest on."""


def pack(values, bits, order=None):
    """Join neighbours in a row, one at a time."""
    per = 32 // bits
    rows, columns = values.shape
    packed = torch.zeros(rows, columns // per, dtype=torch.int64)
    for column in range(columns // per):
        for i in range(per):
            source = column * per + (order[i] if order else i)
            packed[:, column] |= values[:, source].long() << (bits * i)
    return packed.where(packed < 2**31, packed - 2**32).to(torch.int32)


def groups_of(weight, bits):
    """Values in 0 .. 2**bits - 1, with a scale and a zero point for each group of a row."""
    grouped = weight.view(weight.shape[0], -1, GROUP)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / (2**bits - 1)).half().float()
    zero = (-low / scale).round().clamp(1, 2**bits - 1)
    values = (grouped / scale[..., None] + zero[..., None]).round().clamp(0, 2**bits - 1)
    dense = (values - zero[..., None]) * scale[..., None]
    return values.flatten(1).int(), scale, zero.int(), dense.flatten(1)


def gptq(weight, offset=1, bits=4):
    values, scale, zero, dense = groups_of(weight, bits)
    return {
        "qweight": pack(values, bits).T.contiguous(),
        "qzeros": pack((zero - offset).T.contiguous(), bits),
        "scales": scale.T.half().contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }, dense


def gptq_in_any_order(weight):
    """Columns whose groups are not neighbours, as ``desc_act`` makes them."""
    order = torch.randperm(weight.shape[1])
    tensors, dense = gptq(weight[:, order])
    values = groups_of(weight[:, order], 4)[0]
    back = order.argsort()
    tensors["qweight"] = pack(values[:, back], 4).T.contiguous()
    tensors["g_idx"] = tensors["g_idx"][back].contiguous()
    return tensors, dense[:, back]


def awq(weight):
    values, scale, zero, dense = groups_of(weight, 4)
    return {
        "qweight": pack(values.T.contiguous(), 4, AWQ_COLUMNS),
        "qzeros": pack(zero.T.contiguous(), 4, AWQ_COLUMNS),
        "scales": scale.T.half().contiguous(),
    }, dense


def packed_groups(weight, bits=4):
    values, scale, zero, dense = groups_of(weight, bits)
    return {
        "weight_packed": pack(values, bits),
        "weight_scale": scale.half(),
        "weight_zero_point": pack(zero.T.contiguous(), bits).T.contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }, dense


def symmetric_groups(weight):
    grouped = weight.view(weight.shape[0], -1, GROUP)
    scale = (grouped.abs().amax(-1) / 7).half().float()
    values = (grouped / scale[..., None]).round().clamp(-8, 7)
    return {
        "weight_packed": pack(values.flatten(1).int() + 8, 4),
        "weight_scale": scale.half(),
        "weight_shape": torch.tensor(weight.shape),
    }, (values * scale[..., None]).flatten(1)


def int8_rows(weight):
    scale = weight.abs().amax(-1, keepdim=True) / 127
    values = (weight / scale).round()
    return {"weight": values.to(torch.int8), "weight_scale": scale}, values * scale


def fp8_tensor(weight):
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {
        "weight": values,
        "weight_scale": scale.reshape(1),
        "input_scale": torch.ones(1),
    }, values.float() * scale


def fp8_blocks(weight):
    """Blocks of 20 by 20, which no dimension is a multiple of."""
    rows, columns = (-(-size // 20) for size in weight.shape)
    scale = torch.rand(rows, columns) + 0.5
    spread = scale.repeat_interleave(20, 0).repeat_interleave(20, 1)
    spread = spread[: weight.shape[0], : weight.shape[1]]
    values = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scale}, values.float() * spread


def compressed(kind, bits=4):
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits}}},
    }


CASES = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq),
    "gptq, 8 bits": (
        {"quant_method": "gptq", "bits": 8, "group_size": GROUP},
        lambda weight: gptq(weight, bits=8),
    ),
    "gptq, version 2": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, offset=0),
    ),
    "gptq, any order": ({"quant_method": "gptq", "bits": 4}, gptq_in_any_order),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "GEMM"}, awq),
    "packed": (compressed("pack-quantized"), packed_groups),
    "packed, 8 bits": (compressed("pack-quantized", 8), lambda w: packed_groups(w, bits=8)),
    "packed, symmetric": (compressed("pack-quantized"), symmetric_groups),
    "int8": (compressed("int-quantized", 8), int8_rows),
    "fp8": (compressed("float-quantized", 8), fp8_tensor),
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [20, 20]}, fp8_blocks),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def quantise(source, folder, settings, make):
    """Rewrite a checkpoint's projections; gives the values they now stand for."""
    tensors, stored, dense = load_file(source / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        if "_proj" not in name:
            stored[name] = dense[name] = tensor
            continue
        parts, dense[name] = make(tensor)
        stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return dense


def load(folder):
    config = safetensors.read_config(folder)
    weights = allocate(config, device=torch.device("cpu"), dtype=torch.float32)
    tensors = dense_view(Checkpoint(folder), read_json(folder / "config.json"))
    safetensors.fill_weights(folder, tensors, config, weights)
    return weights.slots


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_quantised_ones_stand_for(checkpoint, tmp_path, case, caplog):
    settings, make = CASES[case]
    dense = quantise(checkpoint, tmp_path, settings, make)
    slots = load(tmp_path)
    assert slots.keys() == dense.keys()
    for name, values in dense.items():
        torch.testing.assert_close(slots[name], values, rtol=1e-5, atol=1e-6)
    assert "read to dense ones" in caplog.text


def test_a_checkpoint_that_is_not_quantised_is_left_alone(checkpoint):
    tensors = Checkpoint(checkpoint)
    assert dense_view(tensors, {}) is tensors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quantised with bitsandbytes, which is not supported"),
        ({"quant_method": "gptq", "bits": 3}, "GPTQ with 3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "AWQ in version gemv"),
        (compressed("marlin-24"), "compressed-tensors' marlin-24 with"),
    ],
)
def test_other_ways_are_refused_by_name(checkpoint, settings, message):
    with pytest.raises(ModelLoadError, match=message):
        dense_view(Checkpoint(checkpoint), {"quantization_config": settings})


def test_a_part_that_is_missing_is_named(checkpoint, tmp_path):
    def without_zeros(weight):
        tensors, dense = gptq(weight)
        del tensors["qzeros"]
        return tensors, dense

    quantise(checkpoint, tmp_path, CASES["gptq"][0], without_zeros)
    with pytest.raises(ModelLoadError, match="has no qzeros"):
        load(tmp_path)
