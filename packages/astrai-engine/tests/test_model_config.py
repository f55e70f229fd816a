"""Reading config.json."""

import pytest
from transformers import AutoConfig

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.models import LayerConfig, ModelConfig, RopeConfig
from astrai_engine.models.config import token_ids
from astrai_engine.models.families import ARCHITECTURES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


def read(**changes):
    return ModelConfig.from_hf(LLAMA | changes)


def test_what_a_file_leaves_out_has_the_families_default():
    config = read()
    assert (config.architecture, config.num_kv_heads, config.head_dim) == ("llama", 4, 16)
    assert (config.rope.theta, config.rope.rope_type) == (10000.0, "default")
    assert config.layers == (LayerConfig(),) * 3
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.qk_norm))
    assert config.eos_token_ids == frozenset()


SAID = LLAMA | {"num_hidden_layers": 30, "num_key_value_heads": 2, "eos_token_id": 2}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
FAMILIES_SAY = {
    "llama": {},
    "mistral": {},
    "qwen2": {"use_sliding_window": True},
    "qwen3": {"use_sliding_window": True},
    "smollm3": {"use_sliding_window": True, "sliding_window": 8},
    "phi3": {"rope_scaling": LONGROPE, "max_position_embeddings": 8192},
    "gemma2": {},
    "gemma3_text": {},
    "granite": {},
    "olmo2": {},
    "mixtral": {},
    "qwen3_moe": EXPERTS | {"sliding_window": 8},
}


@pytest.mark.parametrize("kind", FAMILIES_SAY)
def test_what_a_file_leaves_unsaid_is_what_transformers_takes(kind):
    family = kind.removesuffix("_text")
    architecture = next(name for name, own in ARCHITECTURES.items() if own == family)
    said = SAID | {"architectures": [architecture]} | FAMILIES_SAY[kind]
    if family.startswith("gemma"):  # whose files leave more unsaid
        for name in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps"):
            del said[name]
    whole = AutoConfig.for_model(kind, **said).to_dict()
    assert ModelConfig.from_hf(said) == ModelConfig.from_hf(whole)


def test_families_differ_in_what_their_code_fixes():
    qwen2 = read(architectures=["Qwen2ForCausalLM"])
    qwen3 = read(architectures=["Qwen3ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, None)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, "head", 128)
    biased = read(attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert read(architectures=["SmolLM3ForCausalLM"]).tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, [8, 8, 8]),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, [None] * 3),
        ({"sliding_window": 8}, [None] * 3),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "max_window_layers": 1,
            },
            [None] * 3,
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            [None, 8, 8],
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [8, None, 8],
        ),
    ],
)
def test_windows(changes, windows):
    assert [layer.window for layer in read(**changes).layers] == windows


def test_layers_without_rotation():
    config = read(architectures=["SmolLM3ForCausalLM"], no_rope_layers=[1, 0, 1])
    assert [layer.rotary for layer in config.layers] == [True, False, True]
    unsaid = read(architectures=["SmolLM3ForCausalLM"], num_hidden_layers=5)
    assert [layer.rotary for layer in unsaid.layers] == [True, True, True, False, True]


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(ModelLoadError) as caught:
        read(architectures=["MambaForCausalLM"])
    assert str(caught.value).startswith("Architecture MambaForCausalLM is not supported; ")
    assert "LlamaForCausalLM" in str(caught.value)
    with pytest.raises(ModelLoadError, match="Architecture unknown"):
        ModelConfig.from_hf({})


def test_the_nearest_supported_architecture_is_named():
    with pytest.raises(UnsupportedArchitectureError, match="the nearest supported one is Olmo2For"):
        read(architectures=["Olmo3ForCausalLM"])


def test_the_model_type_serves_without_an_architecture():
    without = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert ModelConfig.from_hf({**without, "model_type": "qwen3"}).architecture == "qwen3"


def test_a_missing_setting_is_named():
    without = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    with pytest.raises(ModelLoadError, match="has no 'hidden_size'"):
        ModelConfig.from_hf(without)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "Activation 'gelu'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            "attends in both directions",
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["chunked_attention"] * 3,
            },
            "Layer 0 is of type 'chunked_attention'",
        ),
    ],
)
def test_settings_that_are_not_served_are_refused(changes, message):
    with pytest.raises(ModelLoadError, match=message):
        read(**changes)


def test_a_model_that_also_sees_keeps_its_decoder_apart():
    """The hub's Gemma 3 files leave out what transformers has defaults for."""
    config = ModelConfig.from_hf(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        }
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_seq_len) == (262208, 131072)
    assert (config.activation, config.norms, config.norm_offset) == ("gelu_tanh", "around", 1.0)
    assert (config.attention_scale, config.embedding_scale) == (256**-0.5, 2560**0.5)
    assert (config.rope.rope_type, config.rope.theta, config.rope.factor) == ("linear", 1e6, 8.0)
    local, full = config.layers[4:6]
    assert (local.window, full.window, full.rope) == (1024, None, None)
    assert local.rope == RopeConfig(theta=1e4)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == {1, 106}
    assert config.weight_prefix == "language_model."


def test_granites_factor_moves_into_the_stream():
    """A factor on what layers add is its inverse on the stream, which norms do not see."""
    config = read(
        architectures=["GraniteForCausalLM"], residual_multiplier=0.25, embedding_multiplier=12.0
    )
    assert (config.embedding_scale, config.rms_norm_eps) == (48.0, 1.6e-4)


def test_dynamic_scaling_has_a_context_to_ask_for():
    config = read(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (config.default_seq_len, config.max_seq_len) == (256, 512)
    assert (read().default_seq_len, read().max_seq_len) == (256, 256)


def test_a_file_may_bring_its_own_rope_factors():
    config = read().with_rope(divisors=(1.0, 2.0))
    assert config.rope == RopeConfig(divisors=(1.0, 2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]},
        {"hidden_size": "64"},
        {"num_attention_heads": 0},
        {"rope_parameters": "llama3"},
    ],
)
def test_a_damaged_configuration_is_refused(changes):
    with pytest.raises(ModelLoadError, match=r"cannot be read .* download its config"):
        read(**changes)


def test_each_kind_of_layer_keeps_its_own_rotation():
    """As files of transformers 5 have it, with what those leave out, window or none."""
    config = read(
        architectures=["Gemma3ForCausalLM"],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=None,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_type": "default"},
        },
    )
    assert (config.rope.theta, config.rope.factor) == (1e6, 8.0)
    local = RopeConfig(theta=1e4)
    assert [layer.rope for layer in config.layers] == [local, None, local]
    assert {layer.window for layer in config.layers} == {None}


@pytest.mark.parametrize(("value", "ids"), [(None, set()), (0, {0}), ([2, 7], {2, 7})])
def test_token_ids(value, ids):
    assert token_ids(value) == ids
