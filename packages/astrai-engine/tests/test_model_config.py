"""Reading config.json."""

import pytest

from astrai_engine.errors import ModelLoadError
from astrai_engine.models import LayerConfig, ModelConfig
from astrai_engine.models.config import token_ids

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


def test_families_differ_in_what_their_code_fixes():
    qwen2 = read(architectures=["Qwen2ForCausalLM"])
    qwen3 = read(architectures=["Qwen3ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    biased = read(attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert read(architectures=["SmolLM3ForCausalLM"]).tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, [8, 8, 8]),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, [None] * 3),
        ({"sliding_window": 8}, [None] * 3),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, [None] * 3),
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


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(ModelLoadError) as caught:
        read(architectures=["MambaForCausalLM"])
    assert str(caught.value).startswith("Architecture MambaForCausalLM is not supported; supported")
    assert "LlamaForCausalLM" in str(caught.value)
    with pytest.raises(ModelLoadError, match="Architecture unknown"):
        ModelConfig.from_hf({})


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
    ],
)
def test_settings_that_are_not_served_are_refused(changes, message):
    with pytest.raises(ModelLoadError, match=message):
        read(**changes)


@pytest.mark.parametrize(("value", "ids"), [(None, set()), (0, {0}), ([2, 7], {2, 7})])
def test_token_ids(value, ids):
    assert token_ids(value) == ids
