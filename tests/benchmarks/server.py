"""A server under test: started, waited for, asked over HTTP as a client would, and stopped."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A streamed answer.

    Attributes:
        pieces: when each piece of text came, in seconds from the request.
        total: seconds to the end.
        cached_tokens: of the prompt, as the server reports them.
    """

    pieces: tuple[float, ...]
    total: float
    cached_tokens: int

    @property
    def first(self) -> float:
        """Seconds to the first piece of text."""
        return self.pieces[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [after - before for before, after in pairwise(self.pieces)]


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: on this machine.
        pid: of its process.
        model: the name it serves.
        ready: seconds from its start until it was ready.
    """

    port: int
    pid: int
    model: str
    ready: float

    def ask(self, prompt: str, max_tokens: int) -> Answer:
        """Stream a completion of exactly ``max_tokens`` tokens."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True,
            "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start, cached = time.perf_counter(), 0
        pieces: list[float] = []
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RuntimeError(response.read().decode())
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0].get("text"):
                pieces.append(time.perf_counter() - start)
            details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens") or cached
        connection.close()
        return Answer(tuple(pieces), time.perf_counter() - start, cached)

    def anonymous_bytes(self) -> int:
        """Memory of its own at most so far: what is mapped from files is not counted."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(fields["RssAnon"].split()[0]) * 1024


def peer_environment(folder: Path) -> dict[str, str]:
    """The environment for a peer in a folder: what we tell OpenMP is not for its threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    return kept | {"LD_LIBRARY_PATH": str(folder)}


@contextmanager
def running(command: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[Server]:
    """Run a server, given its command, port and environment, until the block ends."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while _get(port, "/health") is None:
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
            time.sleep(0.02)
        ready = time.perf_counter() - start
        models = _get(port, "/v1/models") or {}
        yield Server(port, process.pid, models["data"][0]["id"], ready)
    finally:
        process.terminate()
        process.wait()


def astrai(port: int) -> list[str]:
    """The command of our own server."""
    application = "astrai_api:app"
    return [
        sys.executable,
        "-m",
        "uvicorn",
        application,
        "--port",
        str(port),
        "--log-level",
        "error",
    ]


def _get(port: int, path: str) -> dict[str, Any] | None:
    """A JSON answer; None while there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        answer = response.read()
        return json.loads(answer) if response.status == http.client.OK else None
    except (OSError, ValueError):
        return None
    finally:
        connection.close()
