"""Every family and rope scaling, on tiny random checkpoints, equals transformers."""

import functools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from astrai_engine.loading import safetensors
from astrai_engine.loading.checkpoint import Checkpoint, reader
from astrai_engine.models import LlamaModel, allocate
from astrai_kernels import CpuBackend, native_unavailable_reason, ops
from astrai_kernels.cpu.pack import pack_dense

CPU = torch.device("cpu")
PROMPT, ANSWER = 21, 8  # tokens
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
ORIGINAL = {"original_max_position_embeddings": 32}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    **ORIGINAL,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, **ORIGINAL}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16}


def longrope(count):
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(count)],
        "long_factor": [2.0 + 0.7 * i for i in range(count)],
    }


@dataclass(frozen=True)
class Case:
    """A model to compare.

    Attributes:
        config: transformers' configuration.
        is_native: whether the native kernels run all its layers in one call.
        context: tokens to serve; None is the model's own.
    """

    config: Any = field(repr=False)
    is_native: bool = True
    context: int | None = None


CASES = {
    "llama": Case(LlamaConfig(**TINY)),
    "llama, tied, biased, own head_dim": Case(
        LlamaConfig(
            **TINY, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16
        )
    ),
    "llama3 rope": Case(LlamaConfig(**TINY, rope_parameters=LLAMA3_ROPE)),
    "yarn": Case(LlamaConfig(**TINY, rope_parameters=YARN_ROPE)),
    "linear rope": Case(LlamaConfig(**TINY, rope_parameters=LINEAR_ROPE)),
    "dynamic rope": Case(LlamaConfig(**TINY, rope_parameters=DYNAMIC_ROPE)),
    "dynamic rope, beyond the trained context": Case(
        LlamaConfig(**TINY | {"max_position_embeddings": 16}, rope_parameters=DYNAMIC_ROPE),
        context=PROMPT + ANSWER,
    ),
    "mistral, window": Case(MistralConfig(**TINY, sliding_window=5)),
    "qwen2": Case(Qwen2Config(**TINY)),
    "qwen2, windows in some layers": Case(
        Qwen2Config(**TINY, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "qwen3": Case(Qwen3Config(**TINY, head_dim=16)),
    "smollm3, layers without rotation": Case(SmolLM3Config(**TINY, no_rope_layers=[1, 0, 1])),
    "smollm3, as its file leaves it unsaid": Case(
        SmolLM3Config(**TINY | {"num_hidden_layers": 4}, use_sliding_window=True, sliding_window=4)
    ),
    "phi3, window": Case(Phi3Config(**TINY, sliding_window=6)),
    "phi3, longrope within the trained context": Case(
        Phi3Config(**TINY, rope_parameters=longrope(4), original_max_position_embeddings=64)
    ),
    "phi3, longrope, served within the trained context": Case(
        Phi3Config(**TINY, rope_parameters=longrope(4), original_max_position_embeddings=64),
        context=40,
    ),
    "phi3, longrope beyond the trained context": Case(
        Phi3Config(**TINY, rope_parameters=longrope(4), original_max_position_embeddings=16)
    ),
    "phi4-mini, rotation of part of a head": Case(
        Phi3Config(
            **TINY | {"hidden_size": 96},
            rope_parameters=longrope(6) | {"partial_rotary_factor": 0.75},
            original_max_position_embeddings=16,
        )
    ),
    "gemma2": Case(
        Gemma2Config(
            **TINY,
            head_dim=16,
            sliding_window=5,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
        )
    ),
    "gemma3": Case(
        Gemma3TextConfig(
            **TINY,
            head_dim=16,
            sliding_window=5,
            query_pre_attn_scalar=20,
            layer_types=MIXED,
            rope_parameters={
                "full_attention": LINEAR_ROPE | {"rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        )
    ),
    "granite": Case(
        GraniteConfig(
            **TINY,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.3,
            logits_scaling=8.0,
        )
    ),
    "olmo2": Case(Olmo2Config(**TINY), is_native=False),
    "mixtral": Case(
        MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2, sliding_window=7),
        is_native=False,
    ),
    "qwen3_moe": Case(Qwen3MoeConfig(**TINY, **EXPERTS, norm_topk_prob=True), is_native=False),
    "qwen3_moe, some layers dense": Case(
        Qwen3MoeConfig(
            **TINY | {"num_hidden_layers": 4},
            **EXPERTS,
            mlp_only_layers=[3],
            decoder_sparse_step=2,
        ),
        is_native=False,
    ),
}


def save_reference(config, folder, kind=None):
    """A random model whose norms and biases are not their trivial defaults, saved."""
    torch.manual_seed(0)
    make = transformers.AutoModelForCausalLM.from_config if kind is None else kind._from_config
    model = make(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model.eval()


def load(folder, dtype=torch.float32, packer=None):
    config = safetensors.read_config(folder)
    weights = allocate(config, device=CPU, dtype=dtype, packer=packer)
    safetensors.fill_weights(folder, Checkpoint(folder), config, weights)
    return LlamaModel(config, weights)


def dense_packer(folder):
    """Packs every projection with its exact values, so that the native kernels run it."""
    read = reader(Checkpoint(folder))

    def pack(projection):
        biases = [read(f"{name}.bias") for name in projection.names if projection.has_bias]
        return pack_dense(
            torch.cat([read(f"{name}.weight") for name in projection.names]),
            bias=torch.cat(biases) if biases else None,
            paired=projection.is_gate_up,
        )

    return pack


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Gives a case's folder and transformers' model of it, made once."""

    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp("model")
        return folder, save_reference(CASES[name].config, folder)

    return make


def prompt(length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, TINY["vocab_size"], (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_logits(model, ids):
    return model(torch.tensor([ids])).logits[0]


def generate(runner, ids):
    """Greedy tokens after a prompt, and the logits of every position on the way."""
    logits, answer = [runner.step({"a": ids})], []
    for _ in range(ANSWER):
        answer.append(int(logits[-1][-1].argmax()))
        logits.append(runner.step({"a": answer[-1:]}))
    return answer, torch.cat(logits)


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name, checkpoint, paged):
    """B184 and more: whole and chunked prefill, paged decode, and the tokens chosen greedily."""
    folder, reference = checkpoint(name)
    model = load(folder)
    if CASES[name].context is not None:
        model.fit_context(CASES[name].context)
    ids, offset = prompt(PROMPT), model.position_offset(PROMPT + ANSWER)
    answer, logits = generate(paged(model, position_offset=offset), ids)
    expected = reference_logits(reference, ids + answer)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert answer == expected[PROMPT - 1 : -1].argmax(-1).tolist()
    runner, every = paged(model, position_offset=offset), ids + answer
    chunked = [runner.step({"a": chunk}) for chunk in (every[:9], every[9:17], every[17:])]
    torch.testing.assert_close(torch.cat(chunked), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_native_kernels_equal_transformers(name, checkpoint, paged):
    """All layers in one call where the five phases say all there is to a layer."""
    if reason := native_unavailable_reason():
        pytest.skip(reason)
    folder, reference = checkpoint(name)
    model = load(folder, packer=dense_packer(folder))
    assert (model.layers.native is not None) == CASES[name].is_native
    if CASES[name].context is not None:
        model.fit_context(CASES[name].context)
    ids = prompt(PROMPT + ANSWER)
    offset = model.position_offset(PROMPT + ANSWER)
    runner = paged(model, backend=CpuBackend(strict=True), position_offset=offset)
    chunked = [runner.step({"a": chunk}) for chunk in (ids[:9], ids[9:17], ids[17:-1], ids[-1:])]
    expected = reference_logits(reference, ids)
    torch.testing.assert_close(torch.cat(chunked), expected, rtol=0, atol=1e-4)


def test_the_decoder_of_a_model_that_also_sees(tmp_path, paged):
    """Gemma 3's larger models: the tensors that see are left aside, the others renamed."""
    text = CASES["gemma3"].config
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision)
    reference = save_reference(config, tmp_path, transformers.Gemma3ForConditionalGeneration)
    ids = prompt(PROMPT)
    expected = reference_logits(reference, ids)
    torch.testing.assert_close(paged(load(tmp_path)).step({"a": ids}), expected, rtol=0, atol=1e-4)


def test_a_ragged_batch_equals_each_alone(checkpoint, paged):
    """Prefill and decode of different lengths mix in one pass."""
    model = load(checkpoint("llama")[0])
    first, second, third = prompt(13), prompt(7, seed=2), prompt(1, seed=3)
    runner = paged(model)
    runner.step({"first": first[:12]})
    mixed = runner.step({"second": second, "first": first[12:], "third": third})
    alone = [paged(model).step({"x": ids}) for ids in (second, first, third)]
    torch.testing.assert_close(
        mixed, torch.cat((alone[0], alone[1][-1:], alone[2])), rtol=0, atol=1e-5
    )


def test_a_longrope_request_has_one_set_of_frequencies(checkpoint):
    """By how long it may grow, whatever else the engine serves."""
    model = load(checkpoint("phi3, longrope beyond the trained context")[0])
    assert [model.position_offset(n) for n in (1, 16, 17, 128)] == [0, 0, 16, 16]
    model.fit_context(16)
    assert model.position_offset(16) == 0
    assert load(checkpoint("llama")[0]).position_offset(128) == 0


class LikeliestOf:
    """A model whose forward pass gives its likeliest tokens."""

    def __init__(self, model):
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.forward = model.likeliest


def test_only_the_wanted_logits_are_computed(checkpoint, paged):
    model = load(checkpoint("llama")[0])
    ids = prompt(6)
    every = paged(model).step({"a": ids})
    rows = torch.tensor([5, 0])
    torch.testing.assert_close(
        paged(model).step({"a": ids}, logit_rows=rows), every[rows], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "mixtral"])
@pytest.mark.parametrize(
    ("dtype", "packed"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)],
)
def test_the_likeliest_tokens_are_those_of_the_logits(name, dtype, packed, checkpoint, paged):
    """Whether or not a model scales and caps its logits."""
    if packed and (reason := native_unavailable_reason()):
        pytest.skip(reason)
    folder, _ = checkpoint(name)
    model = load(folder, dtype, packer=dense_packer(folder) if packed else None)
    ids, rows = prompt(40), torch.tensor([39, 0, 17])
    for wanted in (None, rows):
        logits = paged(model).step({"a": ids}, logit_rows=wanted)
        found = paged(LikeliestOf(model)).step({"a": ids}, logit_rows=wanted)
        assert found == ops.likeliest(logits)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "olmo2", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_runs_on_the_cpu(name, dtype, checkpoint, paged):
    """B187: half precision runs, and stays near full precision."""
    folder, _ = checkpoint(name)
    ids = prompt(12)
    exact = paged(load(folder)).step({"a": ids})
    model = load(folder, dtype)
    logits = paged(model).step({"a": ids})
    assert (model.dtype, logits.dtype) == (dtype, torch.float32)
    assert torch.isfinite(logits).all()
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 0.3, torch.float16: 0.04}[dtype]
    assert (logits - exact).abs().max() <= tolerance * exact.abs().max()
