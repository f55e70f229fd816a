import json
from types import SimpleNamespace

import pytest

from astrai_api.settings import Settings
from astrai_engine.loading.source import ModelSource


def examination(**changes):
    """What the engine says of a machine; as ``astrai_engine.doctor`` does, without torch."""
    plan = SimpleNamespace(
        weights=2**20, kv_per_token=2048, pool=2**21, n_tokens=1024, max_seq_len=512,
        max_step_tokens=256, dtype="float16",
    )  # fmt: skip
    fields = {
        "device": "cpu",
        "free_bytes": 2**30,
        "dtype": "float32",
        "precision": "file",
        "kernels": (("backend", "cpu"), ("rejected", "cuda: no GPU [here]")),
        "source": ModelSource("gguf", "/models/a.gguf", "a"),
        "plan": plan,
        "problems": (),
    }
    return SimpleNamespace(**fields | changes)


@pytest.fixture
def examined(monkeypatch):
    """Has the engine say this; gives the configurations that it was asked about."""

    def install(found):
        asked = []
        monkeypatch.setattr(
            "astrai_api.cli.doctor.examine", lambda config: asked.append(config) or found
        )
        return asked

    return install


def test_everything_is_told(astrai, examined, monkeypatch):
    monkeypatch.setenv("ASTRAI_MAX_QUEUE", "9")
    monkeypatch.setenv("ASTRAI_API_KEY", "secret")
    asked = examined(examination())
    result = astrai("doctor", "--page-size", 4)
    assert result.exit_code == 0, result.stderr
    assert asked[0].page_size == 4
    text = " ".join(result.stdout.split())
    for told in (
        "a (gguf)", "/models/a.gguf", "1.0 GiB free", "cuda: no GPU [here]", "about 1.0 MiB",
        "2.0 MiB: 1,024 tokens", "page_size 4 (option)", "max_queue 9 (environment)",
        "max_batch_size 32 (default)", "model the embedded model (default)",
    ):  # fmt: skip
        assert told in text, told
    assert "secret" not in result.output


def test_programs_get_json(astrai, examined):
    examined(examination())
    content = json.loads(astrai("doctor", "--json").stdout)
    assert content["engine"]["not used"] == "cuda: no GPU [here]"
    assert content["settings"].keys() == Settings.model_fields.keys()
    assert content["problems"] == []


def test_a_model_that_has_to_be_fetched_has_no_plan_yet(astrai, examined):
    examined(examination(plan=None, source=ModelSource("hub", "a/b", "a/b")))
    result = astrai("doctor")
    assert result.exit_code == 0
    assert "once the model has been fetched" in result.stdout


def test_what_keeps_a_server_from_starting_is_told_last_and_is_the_status(astrai, examined):
    examined(examination(plan=None, source=None, problems=("There is no such model.",)))
    result = astrai("doctor")
    assert result.exit_code == 4
    assert result.stderr == "astrai: There is no such model.\n"
    assert "settings" in result.stdout.lower()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [(["--device", "tpu"], 4, "--device should be"), (["--nonsense"], 2, "No such option")],
)
def test_wrong_input_is_a_sentence(astrai, arguments, status, told):
    result = astrai("doctor", *arguments)
    assert result.exit_code == status
    assert told in result.stderr
