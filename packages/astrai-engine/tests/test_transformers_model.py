"""Models of other architectures run by transformers' module, over our attention and cache."""

from unittest import mock

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    BloomConfig,
    DeepseekV3Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    Qwen3Config,
    Starcoder2Config,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.models import load_with_transformers, transformers_loading

TINY = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SERVED = {
    "other norms, biases, a window": Starcoder2Config(
        **TINY, num_key_value_heads=2, sliding_window=5
    ),
    "two blocks side by side": GPTNeoXConfig(**TINY),
    "values narrower than keys": DeepseekV3Config(
        **TINY,
        num_key_value_heads=6,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
    ),
}
NOT_OURS = UnsupportedArchitectureError("Architecture XForCausalLM is not supported.")


def save(config, folder):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model.eval()


def load(folder, dtype=torch.float32):
    return load_with_transformers(folder, device=torch.device("cpu"), dtype=dtype, reason=NOT_OURS)


@torch.inference_mode()
def reference_logits(model, ids):
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("name", SERVED)
def test_equals_transformers(name, tmp_path, paged):
    """Prefill in chunks beside another request's, decode, and only the logits wanted."""
    reference = save(SERVED[name], tmp_path)
    model = load(tmp_path)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    ids = torch.randint(3, 96, (24,), generator=torch.Generator().manual_seed(1)).tolist()
    runner = paged(model)
    logits = [
        runner.step({"a": ids[:9]}),
        runner.step({"b": ids[5:12], "a": ids[9:20]})[7:],
        *(runner.step({"a": [i], "b": [i]})[:1] for i in ids[20:]),
    ]
    expected = reference_logits(reference, ids)
    torch.testing.assert_close(torch.cat(logits), expected, rtol=0, atol=1e-4)
    rows = torch.tensor([5, 0])
    chosen = paged(model).step({"a": ids}, logit_rows=rows)
    torch.testing.assert_close(chosen, expected[rows], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes_its_trial(dtype, tmp_path, paged):
    reference = save(SERVED["two blocks side by side"], tmp_path)
    model, ids = load(tmp_path, dtype), [5, 6, 7, 8]
    logits, exact = paged(model).step({"a": ids}), reference_logits(reference, ids)
    assert (model.dtype, logits.dtype) == (dtype, torch.float32)
    assert (logits - exact).abs().max() <= 0.1 * exact.abs().max()


REFUSED = {
    "attention sinks": (
        GptOssConfig(
            **TINY, num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=2
        ),
        "the logits of a trial differ",
    ),
    "no attention interface": (
        BloomConfig(vocab_size=96, hidden_size=48, n_layer=2, n_head=6),
        "do not all go through",
    ),
    "no attention": (
        MambaConfig(vocab_size=96, hidden_size=48, num_hidden_layers=1, state_size=4),
        "keeps more than keys and values",
    ),
    "a failing module": (
        GptOssConfig(**TINY, num_key_value_heads=2, head_dim=8, num_local_experts=2),
        "index k out of range",
    ),
    "rotation by length": (
        LlamaConfig(
            **TINY, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        "rotation changes with the length",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name, tmp_path):
    config, why = REFUSED[name]
    save(config, tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=why) as caught:
        load(tmp_path)
    assert str(caught.value).startswith("Architecture XForCausalLM is not supported. transformers")


def test_a_window_that_attention_is_not_told_of_is_refused(tmp_path, monkeypatch):
    """The trial is too short to show it."""
    make = Qwen3Attention.__init__

    def make_silent(self, *args, **options):
        make(self, *args, **options)
        self.sliding_window = None

    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    save(Qwen3Config(**TINY, **windows, num_key_value_heads=2), tmp_path)
    assert load(tmp_path).config.num_layers == 3
    monkeypatch.setattr(Qwen3Attention, "__init__", make_silent)
    with pytest.raises(UnsupportedArchitectureError, match="layer 1 does not tell"):
        load(tmp_path)


def test_without_the_extra_the_error_says_so(tmp_path):
    with (
        mock.patch.object(transformers_loading, "find_spec", return_value=None),
        pytest.raises(UnsupportedArchitectureError, match=r"install astrai-engine\[transformers\]"),
    ):
        load(tmp_path)


def test_what_transformers_does_not_know_either(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nothing_like_it"}')
    with pytest.raises(UnsupportedArchitectureError, match="transformers cannot load it either"):
        load(tmp_path)


def test_missing_tensors_are_named(tmp_path):
    save(SERVED["two blocks side by side"], tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    names = sorted(name for name in tensors if ".0.mlp." in name)
    save_file({k: v for k, v in tensors.items() if k not in names}, path, {"format": "pt"})
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert all(f"{name} is missing" in str(caught.value) for name in names)
