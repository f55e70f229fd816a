"""Settings: values, their errors, and what they mean for the engine."""

import logging

import pytest

from astrai_api.settings import Settings, load_settings
from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError


def test_defaults():
    settings = load_settings({})
    assert settings.model is None
    assert settings.api_key == settings.served_model_name == settings.cors_origins == ()
    assert settings.max_body_bytes == 32 * 1024 * 1024
    assert settings.shutdown_timeout == 30
    assert settings.request_timeout is None
    assert settings.engine_config() == EngineConfig()


VALUES = {
    "MODEL": ("some/model", "some/model"),
    "REVISION": ("v1.0", "v1.0"),
    "CHAT_TEMPLATE": (__file__, __file__),
    "GENERATION_CONFIG": ("none", "none"),
    "SERVED_MODEL_NAME": ("a, b,*", ("a", "b", "*")),
    "DEVICE": ("cuda:1", "cuda:1"),
    "TENSOR_PARALLEL_SIZE": ("2", 2),
    "DTYPE": ("bfloat16", "bfloat16"),
    "QUANTIZATION": ("int8", "int8"),
    "ACTIVATIONS": ("int8", "int8"),
    "NUM_THREADS": ("2", 2),
    "BACKEND": ("CUDA", "cuda"),
    "CACHE_DIR": ("/some/folder", "/some/folder"),
    "MAX_BATCH_SIZE": ("4", 4),
    "MAX_SEQ_LEN": ("512", 512),
    "PAGE_SIZE": ("1", 1),
    "N_TOKENS": ("4096", 4096),
    "MAX_STEP_TOKENS": ("256", 256),
    "PREFIX_CACHE": ("0", False),
    "HOST_CACHE_BYTES": ("1000000", 1000000),
    "DISK_CACHE_BYTES": ("2000000", 2000000),
    "MAX_QUEUE": ("9", 9),
    "SPECULATION": ("off", "off"),
    "CUDA_GRAPHS": ("0", False),
    "KV_DTYPE": ("float16", "float16"),
    "TOOL_PARSER": ("mistral", "mistral"),
    "API_KEY": ("k1,k2", ("k1", "k2")),
    "CORS_ORIGINS": ("http://a", ("http://a",)),
    "MAX_BODY_BYTES": ("1000", 1000),
    "SHUTDOWN_TIMEOUT": ("2.5", 2.5),
    "REQUEST_TIMEOUT": ("60", 60.0),
    "TRACES": ("1", True),
    "LOG_FORMAT": ("json", "json"),
    "PAGE": ("0", False),
}

NO_TIERS = {"HOST_CACHE_BYTES": "0", "DISK_CACHE_BYTES": "0"}


@pytest.fixture
def environment(monkeypatch, caplog):
    """Set ``ASTRAI_*`` variables and load."""

    def load(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"ASTRAI_{name}", value)
        with caplog.at_level(logging.WARNING):
            return load_settings()

    return load


@pytest.mark.parametrize("name", VALUES)
def test_each_variable(environment, caplog, name):
    raw, value = VALUES[name]
    assert getattr(environment(**{name: raw}), name.lower()) == value
    assert caplog.text == ""


def test_every_field_is_covered():
    assert {name.lower() for name in VALUES} == set(Settings.model_fields)


def test_engine_gets_its_part(environment):
    needed = {"PREFIX_CACHE": ("1", True), "TENSOR_PARALLEL_SIZE": ("1", 1)}  # by the tiers
    values = {**VALUES, **needed}
    config = environment(**{name: raw for name, (raw, _) in values.items()}).engine_config()
    for name, (_, value) in values.items():
        if hasattr(config, name.lower()):
            assert getattr(config, name.lower()) == value
    assert (config.model, config.disk_cache_bytes) == ("some/model", 2000000)
    other = environment(PREFIX_CACHE="0", TENSOR_PARALLEL_SIZE="2", **NO_TIERS).engine_config()
    assert (other.prefix_cache, other.tensor_parallel_size) == (False, 2)


def test_empty_is_unset(environment):
    settings = environment(API_KEY="", MODEL="", MAX_QUEUE="")
    assert (settings.api_key, settings.model, settings.max_queue) == ((), None, 256)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CHAT_TEMPLATE", "/no/such/file.jinja"),
        ("GENERATION_CONFIG", "mine"),
        ("MAX_QUEUE", "abc"),
        ("MAX_BATCH_SIZE", "0"),
        ("DEVICE", "gpu"),
        ("DTYPE", "fp4"),
        ("BACKEND", "magic"),
        ("PREFIX_CACHE", "maybe"),
        ("SHUTDOWN_TIMEOUT", "-1"),
        ("REQUEST_TIMEOUT", "nan"),
    ],
)
def test_bad_value_is_one_sentence_that_names_it(environment, name, value):
    with pytest.raises(ConfigurationError) as caught:
        environment(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"ASTRAI_{name} should be ")
    assert message.endswith(f", not {value!r}.")


def test_several_bad_values_are_all_named(environment):
    with pytest.raises(ConfigurationError, match=r"ASTRAI_DTYPE .*\. ASTRAI_MAX_QUEUE "):
        environment(DTYPE="x", MAX_QUEUE="x")


def test_unknown_variables_are_warned_of(environment, caplog):
    environment(MAX_QUEU="3", DISK_CACHE="/x")
    for name in ("MAX_QUEU", "DISK_CACHE"):
        assert f"ASTRAI_{name} is not a setting" in caplog.text
    assert len(caplog.records) == 2


def test_keys_are_not_shown():
    assert "secret" not in repr(Settings(api_key=("secret",)))
