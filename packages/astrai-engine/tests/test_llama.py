"""The Llama family on tiny random checkpoints equals transformers."""

import pytest
import torch
import transformers
from transformers import (
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from astrai_engine.loading import safetensors
from astrai_engine.models import LlamaModel, allocate

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "llama tied, biased, own head_dim": LlamaConfig(
        **TINY, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16
    ),
    "llama3 rope": LlamaConfig(**TINY, rope_parameters=LLAMA3_ROPE),
    "yarn": LlamaConfig(**TINY, rope_parameters=YARN_ROPE),
    "linear rope": LlamaConfig(
        **TINY, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "mistral, window": MistralConfig(**TINY, sliding_window=5),
    "qwen2": Qwen2Config(**TINY),
    "qwen2, windows in some layers": Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**TINY, head_dim=16),
    "smollm3, layers without rotation": SmolLM3Config(**TINY, no_rope_layers=[1, 0, 1]),
}


def save_reference(config, folder):
    """A random model whose norms and biases are not their trivial defaults, saved."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model.eval()


def load(folder, dtype=torch.float32):
    config = safetensors.read_config(folder)
    weights = allocate(config, device=CPU, dtype=dtype)
    safetensors.fill_weights(folder, config, weights)
    return LlamaModel(config, weights)


def prompt(length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, TINY["vocab_size"], (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_logits(model, ids):
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name, tmp_path, paged):
    """B184 and more: prefill, chunked prefill and paged decode, for every family."""
    reference = save_reference(CONFIGS[name], tmp_path)
    model = load(tmp_path)
    ids = prompt(21)
    expected = reference_logits(reference, ids)
    whole = paged(model).step({"a": ids})
    runner = paged(model)
    chunked = [
        runner.step({"a": chunk}) for chunk in (ids[:9], ids[9:17], *([i] for i in ids[17:]))
    ]
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cat(chunked), expected, rtol=0, atol=1e-4)
    assert whole.dtype == torch.float32


def test_a_ragged_batch_equals_each_alone(tmp_path, paged):
    """Prefill and decode of different lengths mix in one pass."""
    save_reference(CONFIGS["llama"], tmp_path)
    model = load(tmp_path)
    first, second, third = prompt(13), prompt(7, seed=2), prompt(1, seed=3)
    runner = paged(model)
    runner.step({"first": first[:12]})
    mixed = runner.step({"second": second, "first": first[12:], "third": third})
    alone = [paged(model).step({"x": ids}) for ids in (second, first, third)]
    torch.testing.assert_close(
        mixed, torch.cat((alone[0], alone[1][-1:], alone[2])), rtol=0, atol=1e-5
    )


def test_only_the_wanted_logits_are_computed(tmp_path, paged):
    save_reference(CONFIGS["llama"], tmp_path)
    model = load(tmp_path)
    ids = prompt(6)
    every = paged(model).step({"a": ids})
    rows = torch.tensor([5, 0])
    torch.testing.assert_close(
        paged(model).step({"a": ids}, logit_rows=rows), every[rows], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_runs_on_the_cpu(dtype, tmp_path, paged):
    """B187: half precision runs, and stays near full precision."""
    save_reference(CONFIGS["qwen3"], tmp_path)
    ids = prompt(12)
    exact = paged(load(tmp_path)).step({"a": ids})
    model = load(tmp_path, dtype)
    logits = paged(model).step({"a": ids})
    assert (model.dtype, logits.dtype) == (dtype, torch.float32)
    assert torch.isfinite(logits).all()
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 0.3, torch.float16: 0.04}[dtype]
    assert (logits - exact).abs().max() <= tolerance * exact.abs().max()
