"""A real server, started as the README says, on the embedded model and on a tiny one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest


def _uvicorn(port):
    return [sys.executable, "-m", "uvicorn", "astrai_api:app", "--port", str(port)]


class Server:
    """A server's process: ``uvicorn astrai_api:app``, or what ``command`` gives for a port."""

    def __init__(self, log_path, command=_uvicorn, **settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log_path = log_path
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ASTRAI_")}
        environment |= {name: str(value) for name, value in settings.items()}
        with log_path.open("w") as log:
            self.process = subprocess.Popen(
                command(self.port), env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def log(self):
        """What the server has printed."""
        return self._log_path.read_text()

    def wait_ready(self, timeout=90):
        """Wait until it serves."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready in {timeout} s:\n{self.log}")

    def stats(self):
        """The body of ``/stats``."""
        return httpx.get(f"{self.url}/stats").json()

    def wait_idle(self, timeout=30):
        """Wait until nothing runs; gives the statistics of then."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            stats = self.stats()
            if not stats["active_tasks"] and not stats["waiting_queue"]:
                return stats
            time.sleep(0.05)
        raise AssertionError(f"still busy after {timeout} s: {self.stats()}")

    def stop(self, how=signal.SIGTERM, timeout=40):
        """End it; gives its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()


@pytest.fixture(scope="session")
def start_server(tmp_path_factory):
    """Starts servers: ``with start_server(ASTRAI_X=...) as server``."""

    @contextmanager
    def start(*, wait=True, **settings):
        server = Server(tmp_path_factory.mktemp("server") / "log.txt", **settings)
        try:
            yield server.wait_ready() if wait else server
        finally:
            server.stop()

    return start


@pytest.fixture(scope="session")
def server(start_server):
    """The README's server, on the embedded model."""
    with start_server() as server:
        yield server
        stats = server.wait_idle()
        assert stats["pages"]["in_use"] == 0
        assert stats["pages"]["free"] + stats["pages"]["cached"] == stats["pages"]["total"]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A random Llama over bytes with a context of 128 tokens, saved as a checkpoint folder."""
    import tokenizers  # noqa: PLC0415 - the heavy ones, only for the tests that need them
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    folder.mkdir()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    backend.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": template})
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        eos_token_id=256,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sse_events():
    """Splits an SSE body into (event name or None, data) pairs, by the letter of the standard."""

    def split(body):
        assert body.endswith("\n\n"), "the last frame does not end with a blank line"
        events = []
        for frame in filter(None, re.split(r"\n\n", body)):
            name, data = None, []
            for line in frame.split("\n"):
                if line.startswith(":"):
                    continue
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "event":
                    name = value
                elif field == "data":
                    data.append(value)
                else:
                    raise AssertionError(f"unexpected line {line!r}")
            if data:
                events.append((name, "\n".join(data)))
        return events

    return split
