"""Models from GGUF files equal the checkpoints they were converted from."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.loading.gguf import GGUFTensors, fill_weights
from astrai_engine.loading.gguf_config import read_config
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
PHI3 = QWEN2 | {"pad_token_id": 0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
}
ARCHITECTURES = {"gemma3_text": "gemma3"}
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "llama, tied": LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama, biased": LlamaConfig(**TINY, attention_bias=True),
    "qwen2": Qwen2Config(**QWEN2),
    "qwen3": Qwen3Config(**TINY),
    "smollm3": SmolLM3Config(**TINY | {"num_hidden_layers": 4, "pad_token_id": 0}),
    "phi3": Phi3Config(**PHI3, sliding_window=5),
    "phi3, longrope": Phi3Config(
        **PHI3 | {"max_position_embeddings": 64},
        original_max_position_embeddings=8,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
            "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4],
        },
        partial_rotary_factor=0.75,
    ),
    "gemma2": Gemma2Config(**TINY, sliding_window=5, query_pre_attn_scalar=16),
    "gemma3": Gemma3TextConfig(
        **TINY | {"num_hidden_layers": 7}, sliding_window=5, query_pre_attn_scalar=16
    ),
    "yarn": LlamaConfig(**TINY, rope_parameters=YARN),
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
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
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
        if config.model_type.startswith("gemma") and stem.endswith("norm"):
            values = values + 1  # what the norm adds
            part = "post_attention_norm" if stem.endswith("post_attention_layernorm") else part
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if config.model_type in ("llama", "smollm3") and part in heads:
            by_half = values.reshape(heads[part], 2, -1, *values.shape[1:])
            values = by_half.swapaxes(1, 2).reshape(values.shape)
        layer = stem.split(".")[2] if ".layers." in stem else None
        yield f"{part}.{suffix}" if layer is None else f"blk.{layer}.{part}.{suffix}", values


def write(path, model, tensors, **options):
    write_file(path, model, tensors, **options)
    return GGUFFile(path)


def write_file(path, model, tensors, *, metadata=(), quantised=None, kv_heads=True):
    config = model.config
    writer = gguf.GGUFWriter(path, ARCHITECTURES.get(config.model_type, config.model_type))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if kv_heads:
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_rope(writer, config, tensors)
    if config.model_type not in ("qwen2", "phi3"):
        writer.add_key_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
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


def add_rope(writer, config, tensors):
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_rope_dimension_count(12)
        for name in ("long", "short"):
            tensors[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], np.float32)


def load(file, *, packed=False):
    config = read_config(file)
    tensors = GGUFTensors(file, config)
    packer = BlockPacker(tensors, 16) if packed else None
    weights = allocate(config, device=CPU, dtype=torch.float32, packer=packer)
    fill_weights(tensors, weights)
    return LlamaModel(config, weights)


@torch.inference_mode()
def logits_of(model):
    return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_original(name, tmp_path, paged):
    """B184: query and key rows in the right order, biases kept, heads of 16 dimensions."""
    reference = make_reference(CONFIGS[name])
    model = load(write(tmp_path / "m.gguf", reference, dict(converted(reference))))
    runner = paged(model, position_offset=model.position_offset(len(IDS)))
    logits = runner.step({"a": IDS})
    torch.testing.assert_close(logits, logits_of(reference), rtol=0, atol=1e-4)
    if CONFIGS[name].tie_word_embeddings:
        assert model.weights.head is model.weights.embedding


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", Type.Q8_0), ("qwen3", Type.Q4_1), ("phi3", Type.BF16)]
)
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", Type.Q4_0),
        ("llama, tied", Type.Q4_1),
        ("llama, biased", Type.Q8_0),
        ("qwen2", Type.Q8_0),
        ("qwen3", Type.Q4_0),
        ("phi3", Type.Q4_1),
        ("gemma3", Type.Q8_0),
    ],
)
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


def split(path, parts):
    """Rewrite a model into several files, as llama-gguf-split does."""
    reference = make_reference(CONFIGS["llama"])
    tensors = list(converted(reference))
    names = [f"m-{n:05}-of-{parts:05}.gguf" for n in range(1, parts + 1)]
    for n, name in enumerate(names):
        metadata = [("add_uint16", "split.count", parts), ("add_uint16", "split.no", n)]
        write_file(path / name, reference, dict(tensors[n::parts]), metadata=metadata)
    return reference, names


def test_a_model_in_several_files(tmp_path, paged):
    reference, names = split(tmp_path, 3)
    for name in names:
        logits = paged(load(GGUFFile(tmp_path / name))).step({"a": IDS})
        torch.testing.assert_close(logits, logits_of(reference), rtol=0, atol=1e-4)


def test_a_part_that_is_not_there_is_named(tmp_path):
    _, names = split(tmp_path, 3)
    (tmp_path / names[1]).unlink()
    with pytest.raises(ModelLoadError, match=rf"is one of 3 parts of a model: {names[1]} are not"):
        GGUFFile(tmp_path / names[0])
    (tmp_path / names[0]).rename(tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match="under the names they were made with"):
        GGUFFile(tmp_path / "m.gguf")


def test_a_mixture_of_experts_is_refused(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    file = write(tmp_path / "m.gguf", reference, {}, metadata=[("add_expert_count", 8)])
    with pytest.raises(ModelLoadError, match="mixture of experts, which is not supported in GGUF"):
        read_config(file)


def test_settings_listed_for_each_layer(tmp_path):
    reference = make_reference(CONFIGS["llama"])
    same = ("add_array", "llama.attention.head_count_kv", [2, 2])
    other = ("add_array", "llama.attention.head_count_kv", [2, 4])
    for name, metadata in (("same", same), ("other", other)):
        path = tmp_path / f"{name}.gguf"
        write(path, reference, dict(converted(reference)), metadata=[metadata], kv_heads=False)
    assert load(GGUFFile(tmp_path / "same.gguf")).config.num_kv_heads == 2
    with pytest.raises(ModelLoadError, match=r"differ in llama\.attention\.head_count_kv"):
        read_config(GGUFFile(tmp_path / "other.gguf"))


@pytest.mark.parametrize(("layers", "scale"), [(62, 20), (2, 16)])
def test_the_largest_gemma_scales_attention_by_another_size(tmp_path, layers, scale):
    config = Gemma3TextConfig(**TINY | {"num_hidden_layers": 2, "hidden_size": 80})
    config.num_hidden_layers = layers
    reference = make_reference(Gemma3TextConfig(**TINY))
    reference.config = config
    file = write(tmp_path / "m.gguf", reference, {})
    assert read_config(file).attention_scale == scale**-0.5


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedArchitectureError,
        match=r"architecture qwen, which is not supported; the nearest supported is qwen\d,",
    ):
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
