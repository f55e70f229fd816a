"""The server as a process: how it starts, and how it ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest

STREAM = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


class Server:
    """A uvicorn process; its log is read line by line."""

    def __init__(self, app: str, folder: Path, *, port: int = 0, **environment: str) -> None:
        command = [sys.executable, "-m", "uvicorn", app, "--port", str(port)]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        for line in self.process.stderr:
            self.log += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(self.log)

    def wait(self) -> int:
        """The exit status, once the process has ended."""
        self.log += self.process.communicate(timeout=30)[1]
        return self.process.returncode


@pytest.fixture
def start(tmp_path):
    """Start a server on ``astrai_api:app`` or on the source of an app."""
    with contextlib.ExitStack() as stack:

        def run(source: str | None = None, **options) -> Server:
            if source is not None:
                (tmp_path / "served.py").write_text(textwrap.dedent(source))
            app = "astrai_api:app" if source is None else "served:app"
            server = Server(app, tmp_path, **options)
            stack.callback(server.process.stderr.close)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            return server

        yield run


def test_wrong_model_is_one_sentence(start):
    server = start(ASTRAI_MODEL="/nowhere/model.gguf")
    assert server.wait() != 0
    assert server.log.count("/nowhere/model.gguf") == 1
    assert "Traceback" not in server.log


def test_wrong_setting_is_one_sentence(start):
    server = start(ASTRAI_MAX_QUEUE="abc")
    assert server.wait() != 0
    assert server.log.count("ASTRAI_MAX_QUEUE should be a valid integer") == 1
    assert "Traceback" not in server.log


FAILS_LATER = """
    from astrai_api import Settings, create_app
    from astrai_engine.errors import ModelLoadError

    def load(settings):
        raise ModelLoadError("The file is cut short; fetch it again.")

    app = create_app(settings=Settings(model=__file__.replace("served.py", "")), load=load)
"""


def test_load_failure_ends_the_process(start, tmp_path):
    (tmp_path / "config.json").touch()
    server = start(FAILS_LATER)
    assert server.wait() == 1
    assert "The file is cut short; fetch it again." in server.log
    assert "Traceback" not in server.log


def test_port_in_use_is_found_before_loading(start, tmp_path):
    (tmp_path / "config.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start(FAILS_LATER, port=taken.getsockname()[1])
        assert server.wait() != 0
    assert "address already in use" in server.log
    assert "cut short" not in server.log


def test_whoever_watches_does_not_hold_up_the_end(start):
    server = start(
        """
        from astrai_api import create_app
        from astrai_api.testing import FakeEngine

        app = create_app(engine=FakeEngine())
        """
    )
    url = server.wait_for(r"running on (http://\S+)").group(1)
    accept = {"accept": "text/event-stream"}
    with httpx.stream("GET", f"{url}/engine/live", headers=accept, timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: engine"
        server.process.send_signal(signal.SIGTERM)
        assert "event: frame" in list(lines)
    assert server.wait() == -signal.SIGTERM


DRAINS = """
    from astrai_api import create_app
    from astrai_api.testing import FakeEngine, Gate, Reply

    gate = Gate()

    class Engine(FakeEngine):
        def begin_drain(self):
            super().begin_drain()
            {on_drain}

    app = create_app(engine=Engine.scripted(Reply("before", gate, " after")))
"""


@pytest.mark.parametrize(
    ("on_drain", "last_words"),
    [("gate.open()", '"content":" after"'), ("pass", '"error":{"message"')],
)
def test_streams_end_properly_at_sigterm(start, on_drain, last_words):
    server = start(DRAINS.format(on_drain=on_drain), ASTRAI_SHUTDOWN_TIMEOUT="0.3")
    url = server.wait_for(r"running on (http://\S+)").group(1)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=STREAM, timeout=20) as response:
        lines = response.iter_lines()
        assert any("before" in line for line in lines)
        server.process.send_signal(signal.SIGTERM)
        rest = "\n".join(lines)
    assert last_words in rest
    assert rest.endswith("data: [DONE]\n")
    assert server.wait() == -signal.SIGTERM
    assert "Traceback" not in server.log
