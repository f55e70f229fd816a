import os
import signal
import subprocess
import sys
import textwrap

import httpx
import pytest

from astrai_api.settings import Settings, option_name

SCRIPT = """
    import uvicorn
    from astrai_api import Settings, create_app
    from astrai_api.cli.serve import run_server
    from astrai_api.testing import FakeEngine, Gate, Reply

    gate = Gate()

    class Engine(FakeEngine):
        def begin_drain(self):
            super().begin_drain()
            gate.open()

    app = create_app(engine=Engine.scripted(Reply("before", gate, " after")), settings=Settings())
    run_server(uvicorn.Config(app, port=0))
"""


def test_a_drained_server_exits_with_0():
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stderr=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in server.stderr if "running on" in line)
        url = next(word for word in line.split() if word.startswith("http"))
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            assert any("before" in line for line in lines)
            server.send_signal(signal.SIGTERM)
            assert any("after" in line for line in lines)
        server.communicate(timeout=20)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


@pytest.fixture
def served(monkeypatch):
    """Keeps the servers that would have been run."""
    configs = []
    monkeypatch.setattr("astrai_api.cli.serve.run_server", configs.append)
    monkeypatch.setattr("astrai_api.cli.serve.configure_logging", lambda _, level: None)
    return configs


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").touch()
    return tmp_path


def settings_of(config) -> Settings:
    return config.app.state.serving.settings


def test_an_option_beats_the_environment_which_beats_the_default(
    astrai, served, checkpoint, monkeypatch
):
    monkeypatch.setenv("ASTRAI_MAX_QUEUE", "7")
    monkeypatch.setenv("ASTRAI_MAX_BATCH_SIZE", "3")
    monkeypatch.setenv("ASTRAI_MODEL", "/somewhere/else")
    result = astrai("serve", "--max-batch-size", 5, "--model", checkpoint, "--no-prefix-cache")
    assert result.exit_code == 0, result.output
    settings = settings_of(served[0])
    assert (settings.max_batch_size, settings.max_queue, settings.page_size) == (5, 7, 16)
    assert settings.model == str(checkpoint)
    assert settings.prefix_cache is False


def test_address_and_log_are_the_servers_own(astrai, served, checkpoint):
    options = ["--host", "0.0.0.0", "--port", 9, "--log-level", "error", "--no-access-log"]
    assert astrai("serve", "--model", checkpoint, *options).exit_code == 0
    (config,) = served
    assert (config.host, config.port, config.log_level) == ("0.0.0.0", 9, "error")
    assert config.access_log is False


def test_what_kernels_read_themselves_reaches_them(astrai, served, checkpoint, monkeypatch):
    monkeypatch.setenv("ASTRAI_BACKEND", "cuda")
    monkeypatch.setenv("ASTRAI_CACHE_DIR", "/a")
    astrai("serve", "--model", checkpoint, "--backend", "torch_native", "--cache-dir", "/b")
    assert os.environ["ASTRAI_BACKEND"] == "torch_native"
    assert os.environ["ASTRAI_CACHE_DIR"] == "/b"


@pytest.mark.parametrize(
    ("arguments", "told", "status"),
    [
        (["--max-queue", "abc"], "--max-queue should be a valid integer", 4),
        (["--device", "gpu"], "--device should be auto, cpu, cuda or one like cuda:1", 4),
        (["--dtype", "fp4"], "--dtype should be", 4),
        (["--model", "/nowhere.gguf"], "Model '/nowhere.gguf' was not found", 4),
        (["--ssl-certfile", __file__], "--ssl-certfile and --ssl-keyfile together", 2),
    ],
)
def test_a_wrong_option_is_one_sentence(astrai, served, arguments, told, status):
    result = astrai("serve", *arguments)
    assert result.exit_code == status
    assert result.stderr.startswith("astrai: ")
    assert told in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert served == []


def test_a_wrong_variable_is_named_as_one(astrai, served, monkeypatch):
    monkeypatch.setenv("ASTRAI_MAX_QUEUE", "abc")
    result = astrai("serve", "--page-size", "4")
    assert result.exit_code == 4
    assert "ASTRAI_MAX_QUEUE should be" in result.stderr


def test_keys_are_not_repeated(astrai, served):
    result = astrai("serve", "--api-key", "secret", "--max-queue", "x")
    assert "secret" not in result.output


def test_every_setting_is_an_option_with_help(astrai):
    shown = astrai("serve", "--help").stdout
    for field in Settings.model_fields:
        assert option_name(field) in shown, field
