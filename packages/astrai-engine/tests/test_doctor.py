import pytest

from astrai_engine.config import EngineConfig
from astrai_engine.doctor import examine
from astrai_engine.engine import InferenceEngine
from astrai_engine.errors import ConfigurationError
from astrai_engine.loading.model_store import StoredModel


def test_the_plan_is_what_an_engine_becomes(tiny_checkpoint):
    config = EngineConfig(
        model=str(tiny_checkpoint), device="cpu", n_tokens=512, quantization="none"
    )
    found = examine(config)
    with InferenceEngine(config=config) as engine:
        info = engine.info
    assert found.problems == ()
    assert (found.device, found.dtype) == (info.device, info.dtype)
    assert found.precision == info.quantization
    assert found.plan.dtype == info.kv_dtype
    assert found.plan.n_tokens == info.n_tokens
    assert found.plan.max_seq_len == info.max_seq_len
    assert found.plan.max_step_tokens == info.max_step_tokens
    assert found.plan.pool == found.plan.n_tokens * found.plan.kv_per_token
    assert dict(found.kernels)["backend"].startswith(info.backend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_take_what_their_tensors_take(tiny_checkpoint, dtype):
    (file,) = tiny_checkpoint.glob("*.safetensors")
    config = EngineConfig(
        model=str(tiny_checkpoint), device="cpu", dtype=dtype, quantization="none"
    )
    stored = file.stat().st_size  # float32, and a header
    expected = stored if dtype == "float32" else stored / 2
    assert examine(config).plan.weights == pytest.approx(expected, rel=0.1)


def test_a_rank_has_its_share(tiny_checkpoint):
    plans = [
        examine(
            EngineConfig(
                model=str(tiny_checkpoint),
                device="cpu",
                n_tokens=512,
                quantization="none",
                tensor_parallel_size=size,
            )
        ).plan
        for size in (1, 2)
    ]
    assert plans[1].kv_per_token == plans[0].kv_per_token // 2
    assert plans[1].pool == plans[0].pool // 2
    assert plans[1].weights == pytest.approx(plans[0].weights / 2, rel=0.05)


def test_a_model_in_the_cache_has_a_plan(tiny_checkpoint, monkeypatch):
    stored = StoredModel("some/model", tiny_checkpoint, 1, "abc", 0.0)
    monkeypatch.setattr("astrai_engine.doctor.list_models", lambda: [stored])
    assert examine(EngineConfig(model="some/model", device="cpu")).plan is not None
    other = EngineConfig(model="some/model", revision="other", device="cpu")
    assert examine(other).plan is None


def test_a_model_on_the_hub_is_not_fetched(monkeypatch):
    monkeypatch.setattr("astrai_engine.doctor.list_models", list)
    found = examine(EngineConfig(model="some/model", device="cpu"))
    assert found.source.kind == "hub"
    assert found.plan is None
    assert found.problems == ()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": "/nowhere"}, "'/nowhere' was not found"),
        ({"max_seq_len": 10**9}, "max_seq_len is 1000000000"),
    ],
)
def test_problems_are_told_beside_what_can_be(tiny_checkpoint, settings, told):
    found = examine(EngineConfig(**{"model": str(tiny_checkpoint), "device": "cpu"} | settings))
    assert found.plan is None
    assert told in found.problems[0]
    assert found.free_bytes > 0


def test_a_setting_that_is_wrong_here_is_refused():
    with pytest.raises(ConfigurationError, match="device is 'tpu'"):
        examine(EngineConfig(device="tpu"))
