"""Models from GGUF files equal the checkpoints they were converted from."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.gguf import fill_weights, read_config
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.quantization import BlockPacker
from astrai_engine.models import LlamaModel, allocate
from astrai_kernels import native_unavailable_reason

CPU = torch.device("cpu")
IDS = [5, 3, 17, 9, 2, 11, 40, 8, 8, 1]
TINY = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "head_dim": 16,
}
QWEN2 = {key: value for key, value in TINY.items() if key != "head_dim"}
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "llama, tied": LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama, biased": LlamaConfig(**TINY, attention_bias=True),
    "qwen2": Qwen2Config(**QWEN2),
    "qwen3": Qwen3Config(**TINY),
}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def make_reference(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return model


def converted(model):
    """Tensors as llama.cpp's converter names and orders them."""
    config = model.config
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        part = next(new for old, new in PARTS.items() if stem.endswith(old))
        values = tensor.numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if config.model_type == "llama" and part in heads:
            by_half = values.reshape(heads[part], 2, -1, *values.shape[1:])
            values = by_half.swapaxes(1, 2).reshape(values.shape)
        layer = stem.split(".")[2] if ".layers." in stem else None
        yield f"{part}.{suffix}" if layer is None else f"blk.{layer}.{part}.{suffix}", values


def write(path, model, tensors, *, metadata=(), quantised=None):
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type != "qwen2":
        writer.add_key_length(config.head_dim)
    for add, *values in metadata:
        getattr(writer, add)(*values)
    for name, values in tensors.items():
        kind = quantised if values.ndim == 2 else None
        data = values if kind is None else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def load(file, *, packed=False):
    config = read_config(file)
    packer = BlockPacker(file, config, 16) if packed else None
    weights = allocate(config, device=CPU, dtype=torch.float32, packer=packer)
    fill_weights(file, config, weights)
    return LlamaModel(config, weights)


@torch.inference_mode()
def logits_of(model):
    return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_original(name, tmp_path, paged):
    """B184: query and key rows in the right order, biases kept, heads of 16 dimensions."""
    reference = make_reference(CONFIGS[name])
    model = load(write(tmp_path / "m.gguf", reference, dict(converted(reference))))
    logits = paged(model).step({"a": IDS})
    torch.testing.assert_close(logits, logits_of(reference), rtol=0, atol=1e-4)
    if CONFIGS[name].tie_word_embeddings:
        assert model.weights.head is model.weights.embedding


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_1, Type.F16, Type.BF16], ids=str)
def test_quantised_tensors_are_their_dequantised_values(name, kind, tmp_path, paged):
    reference = make_reference(CONFIGS[name])
    tensors = dict(converted(reference))
    model = load(write(tmp_path / "m.gguf", reference, tensors, quantised=kind))
    rounded = {
        key: gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
        if value.ndim == 2
        else value
        for key, value in tensors.items()
    }
    plain = load(write(tmp_path / "plain.gguf", reference, rounded))
    assert torch.equal(paged(model).step({"a": IDS}), paged(plain).step({"a": IDS}))
    assert not torch.equal(model.weights.embedding.weight, reference.model.embed_tokens.weight)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0], ids=str)
def test_packed_blocks_are_their_dequantised_values(name, kind, tmp_path, paged):
    if reason := native_unavailable_reason():
        pytest.skip(reason)
    reference = make_reference(CONFIGS[name])
    file = write(tmp_path / "m.gguf", reference, dict(converted(reference)), quantised=kind)
    model = load(file, packed=True)
    assert not {name for name, slot in model.weights.slots.items() if slot.ndim == 2}
    torch.testing.assert_close(
        paged(model).step({"a": IDS}), paged(load(file)).step({"a": IDS}), rtol=0, atol=5e-3
    )


def test_types_without_a_kernel_are_not_packed(tmp_path, paged):
    reference = make_reference(CONFIGS["llama"])
    file = write(tmp_path / "m.gguf", reference, dict(converted(reference)), quantised=Type.F16)
    model = load(file, packed=True)
    assert model.weights.packed == frozenset()
    assert torch.equal(paged(model).step({"a": IDS}), paged(load(file)).step({"a": IDS}))


def test_frequency_divisors_are_read(tmp_path):
    """Llama 3's scaling comes as a tensor of divisors."""
    reference = make_reference(CONFIGS["llama"])
    divisors = np.linspace(1, 8, TINY["head_dim"] // 2).astype(np.float32)
    tensors = dict(converted(reference)) | {"rope_freqs.weight": divisors}
    file = write(tmp_path / "m.gguf", reference, tensors)
    load(file)
    assert read_config(file).rope.divisors == tuple(divisors.tolist())


def test_scaling_and_end_tokens_are_read(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    file = write(
        tmp_path / "m.gguf",
        reference,
        dict(converted(reference)),
        metadata=[
            ("add_rope_scaling_type", gguf.RopeScalingType.LINEAR),
            ("add_rope_scaling_factor", 4.0),
            ("add_eos_token_id", 2),
            ("add_eot_token_id", 7),
        ],
    )
    config = read_config(file)
    assert (config.rope.rope_type, config.rope.factor) == ("linear", 4.0)
    assert config.eos_token_ids == {2, 7}


def test_everything_wrong_is_named_at_once(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    tensors = dict(converted(reference))
    del tensors["blk.1.attn_v.weight"]
    tensors["output_norm.weight"] = np.zeros(5, np.float32)
    tensors["blk.0.surprise.weight"] = np.zeros(5, np.float32)
    with pytest.raises(ModelLoadError) as caught:
        load(write(tmp_path / "m.gguf", reference, tensors))
    assert str(caught.value) == (
        f"{tmp_path / 'm.gguf'} cannot be loaded: model.layers.1.self_attn.v_proj.weight is "
        "missing; blk.0.surprise.weight is not part of this architecture; output_norm.weight has "
        "shape (5,) instead of (64,)."
    )


def test_very_many_problems_are_counted(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    with pytest.raises(ModelLoadError, match=r"is missing; and 4 more\.$"):
        load(write(tmp_path / "m.gguf", reference, {}))


def test_a_part_of_a_model_is_refused(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    split = ("add_uint16", "split.count", 3)
    with pytest.raises(ModelLoadError, match="is one of 3 parts"):
        read_config(write(tmp_path / "m.gguf", reference, {}, metadata=[split]))


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"architecture mamba, which is not supported.*llama"):
        read_config(GGUFFile(tmp_path / "m.gguf"))


def test_a_missing_setting_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_head_count(4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"has no llama\.embedding_length"):
        read_config(GGUFFile(tmp_path / "m.gguf"))
