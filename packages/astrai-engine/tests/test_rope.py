"""Rotary frequencies equal transformers' and the published values."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from astrai_engine.errors import ModelLoadError
from astrai_engine.models.rope import RopeConfig, inverse_frequencies

HEAD_DIM = 128


def settings(**scaling):
    return {
        "hidden_size": HEAD_DIM * 2,
        "num_attention_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_theta": 500000.0, **scaling},
    }


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.01 * i for i in range(64)],
    "long_factor": [1.0 + i for i in range(64)],
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        LLAMA3 | {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
        YARN,
        YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False},
        YARN | {"attention_factor": 0.5},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
        YARN | {"factor": None},
        YARN | {"rope_theta": 10.0},  # the ramp ends behind the last dimension
        YARN | {"original_max_position_embeddings": 64},  # and begins before the first
        DYNAMIC,
        LONGROPE,
        LONGROPE | {"attention_factor": 1.1, "partial_rotary_factor": 1.0},
        LONGROPE | {"factor": 4.0},
        LONGROPE | {"factor": 0.5},
    ],
)
def test_scaled_as_transformers_does(scaling):
    config = settings(**scaling)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](LlamaConfig(**config), "cpu")
    rope = RopeConfig.from_hf(config)
    torch.testing.assert_close(inverse_frequencies(rope, HEAD_DIM), expected, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("seq_len", [4096, 4097, 131072, 200000])
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_scaled_for_a_context_as_transformers_does(scaling, seq_len):
    """The context decides: dynamic's base grows with it, longrope has two sets of factors."""
    config = settings(**scaling)
    init = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    expected, _ = init(LlamaConfig(**config), "cpu", seq_len=seq_len)
    actual = inverse_frequencies(RopeConfig.from_hf(config), HEAD_DIM, seq_len)
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=0)


def test_older_names_of_longrope():
    """Phi-3 called it su, then yarn."""
    longrope = RopeConfig.from_hf(settings(**LONGROPE))
    assert RopeConfig.from_hf(settings(**LONGROPE | {"rope_type": "su"})) == longrope
    yarn = settings(**LONGROPE | {"rope_type": "yarn"})
    assert RopeConfig.from_hf(yarn, is_yarn_longrope=True) == longrope


def test_longrope_needs_a_factor_for_each_frequency():
    with pytest.raises(ModelLoadError, match="needs a 'long_factor'"):
        RopeConfig.from_hf(settings(**LONGROPE | {"long_factor": None}))
    rope = RopeConfig.from_hf(settings(**LONGROPE | {"long_factor": [1.0]}))
    with pytest.raises(ModelLoadError, match="1 factors for 64 frequencies"):
        inverse_frequencies(rope, HEAD_DIM, 8192)


def test_only_a_part_of_a_head_is_rotated():
    rope = RopeConfig(rotated_share=0.5)
    assert torch.equal(inverse_frequencies(rope, 64), inverse_frequencies(RopeConfig(), 32))


def test_llama3_at_published_values():
    """B173: ratios to the unscaled frequencies, and one absolute value."""
    plain = inverse_frequencies(RopeConfig.from_hf(settings()), HEAD_DIM)
    scaled = inverse_frequencies(RopeConfig.from_hf(settings(**LLAMA3)), HEAD_DIM)
    ratio = scaled / plain
    assert ratio[31].item() == pytest.approx(0.493507, rel=1e-5)
    assert ratio[32].item() == pytest.approx(0.371122, rel=1e-5)
    assert scaled[32].item() == pytest.approx(0.000524846, rel=1e-5)
    assert ratio[35:].tolist() == [0.125] * 29
    assert scaled[63].item() == pytest.approx(3.06893e-7, rel=1e-5)
    assert ratio[:25].tolist() == [1.0] * 25


def test_linear_divides():
    """B175: linear scaling is not ignored."""
    plain = inverse_frequencies(RopeConfig(), 64)
    linear = RopeConfig.from_hf(
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "max_position_embeddings": 64}
    )
    torch.testing.assert_close(inverse_frequencies(linear, 64), plain / 4, rtol=1e-7, atol=0)


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["foo", "proportional"])
def test_an_unknown_type_is_named(form, kind):
    """B175: a scaling we don't know is refused, not ignored."""
    with pytest.raises(ModelLoadError, match=f"'{kind}' is not supported; supported are default"):
        RopeConfig.from_hf({form: {"rope_type": kind, "factor": 2.0}})


def test_a_scaling_without_factor_is_refused():
    with pytest.raises(ModelLoadError, match="'linear' needs a 'factor'"):
        RopeConfig.from_hf({"rope_scaling": {"type": "linear"}, "max_position_embeddings": 64})


def test_older_files_keep_theta_outside():
    assert RopeConfig.from_hf({"rope_theta": 1e6}).theta == 1e6


def test_divisors_of_a_gguf_file():
    plain = inverse_frequencies(RopeConfig(), 4)
    divided = inverse_frequencies(RopeConfig(divisors=(1.0, 8.0)), 4)
    assert divided.tolist() == [plain[0].item(), plain[1].item() / 8]


def test_yarn_needs_no_ramp_between_equal_borders():
    """A ramp of no width is a step, not a division by zero."""
    rope = RopeConfig(rope_type="yarn", factor=2.0, original_max_seq_len=8, theta=10000.0)
    frequencies = inverse_frequencies(rope, 4)
    assert all(math.isfinite(value) for value in frequencies.tolist())
