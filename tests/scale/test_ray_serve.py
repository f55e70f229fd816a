"""Two replicas of the embedded model under Ray Serve: answers, hits, and what one's death costs."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine

pytestmark = pytest.mark.scale

SIZES = {"n_tokens": 4096, "max_batch_size": 8, "num_threads": 1}
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
)
NUM_TOKENS = 24
LONG = {"max_tokens": 600, "extra_body": {"ignore_eos": True}}


def chat(question, **fields):
    messages = [{"role": "user", "content": question}]
    return {"model": "astrai", "messages": messages, "temperature": 0, **fields}


def until(condition, timeout=100):
    """Wait for something to be true, and give it."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
    return found


def processes(session, words=""):
    """Ids of the processes of a session, those with these words in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and words in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


class Replicas:
    """Replicas behind one address."""

    def __init__(self, port, session):
        self.url = f"http://127.0.0.1:{port}"
        self.session = session
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def client(self, replica=None, **options):
        """A client of one replica, or of all."""
        headers = {} if replica is None else {"x-astrai-replica": replica}
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="-", default_headers=headers, timeout=120, **options
        )

    def metric(self, name, **labels):
        """The value of a metric by replica."""
        page = self.http.get("/metrics").text
        return {
            sample.labels["replica"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def names(self):
        return sorted(self.metric("astrai:ready"))

    def running(self):
        """Choices that run, by replica."""
        return self.metric("astrai:num_requests_running")


@pytest.fixture(scope="module")
def starting(code_blocks, tmp_path_factory):
    """The guide's configuration, with sizes for a small machine, while it starts."""
    (block,) = code_blocks("docs/guides/replicas.md", "yaml")
    config = yaml.safe_load(block.code)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"] |= {"replicas": 2, "max_replicas": 2, "cpus": 1, **SIZES}
    path = tmp_path_factory.mktemp("serve") / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: it has the paths of sockets below it
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ASTRAI_", "RAY_"))}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    # Below `uv run`, Ray would start its workers with `uv run` from a copy of this repository, and
    # so install that copy into the environment that these tests run in.
    environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    command = [sys.executable, Path(__file__).with_name("serve_replicas.py"), path, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            yield process, port
            process.communicate(timeout=60)
            until(lambda: not processes(process.pid), timeout=20)
        finally:
            for leftover in processes(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(leftover, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def expected(starting):
    """What one plain engine answers; it has the time until the replicas are there."""
    with InferenceEngine(config=EngineConfig(**SIZES)) as engine:
        return {
            question: engine.generate_with_request(
                GenerationRequest(
                    messages=[{"role": "user", "content": question}],
                    temperature=0.0,
                    max_tokens=NUM_TOKENS,
                )
            )
            for question in QUESTIONS
        }


@pytest.fixture(scope="module")
def replicas(starting, expected):
    process, port = starting
    assert process.stdout.readline() == "ready\n"
    replicas = Replicas(port, process.pid)
    assert len(replicas.names()) == 2
    yield replicas
    replicas.http.close()


def streamed(client, request):
    """The text of a stream."""
    pieces = client.chat.completions.create(**request, stream=True)
    return "".join(piece.choices[0].delta.content or "" for piece in pieces)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_replica_answers_as_a_plain_engine_does(replicas, expected, question):
    request = chat(question, max_tokens=NUM_TOKENS)
    for name in (*replicas.names(), None):
        with replicas.client(name) as client:
            whole = client.chat.completions.create(**request)
            assert whole.choices[0].message.content == expected[question]
            assert streamed(client, request) == expected[question]


def test_what_goes_wrong_is_told_as_by_one_server(replicas):
    answer = replicas.http.post("/v1/chat/completions", content=b"{")
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]["message"]
    unknown = replicas.http.get("/nothing", headers={"x-request-id": "mine"})
    assert unknown.status_code == 404
    assert unknown.headers.get_list("x-request-id") == ["mine"]
    assert replicas.http.get("/health").json() == {"status": "ok", "model_loaded": True}


def test_hanging_up_stops_the_request(replicas):
    def num_aborted():
        ended = replicas.metric("astrai:request_success_total", finished_reason="abort")
        return sum(ended.values())

    before = num_aborted()
    with replicas.client() as client:
        stream = client.chat.completions.create(**chat("Count.", stream=True, **LONG))
        next(iter(stream))
        stream.close()
    until(lambda: num_aborted() == before + 1, timeout=20)


def shared_prefix_workload(kind):
    """Four long beginnings, each with four ends, in turns."""
    beginnings = [
        f"You are the {kind} assistant number {i}. " + f"Rule {kind} {i}: be brief and kind. " * 18
        for i in range(4)
    ]
    return [f"{beginning} Question {turn}?" for turn in range(4) for beginning in beginnings]


def test_more_is_found_in_caches_than_by_chance(replicas):
    """A request goes to the replica that has its beginning; half of the time chance does not."""
    names, draw = replicas.names(), random.Random(0)
    hits = "astrai:prefix_cache_hits_total"
    found = {}
    for kind in ("random", "routed"):
        before = sum(replicas.metric(hits).values())
        answered_by = {}
        for prompt in shared_prefix_workload(kind):
            name = draw.choice(names) if kind == "random" else None
            headers = {} if name is None else {"x-astrai-replica": name}
            body = {"prompt": prompt, "max_tokens": 1}
            answer = replicas.http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            beginning = prompt.partition("Question")[0]
            answered_by.setdefault(beginning, set()).add(answer.headers["x-astrai-replica"])
        found[kind] = sum(replicas.metric(hits).values()) - before
        if kind == "routed":
            assert [len(replicas) for replicas in answered_by.values()] == [1] * 4
    print(f"prompt tokens found in caches: {found}")
    assert found["routed"] > 1.3 * found["random"] > 0


def outcome(replicas, name, *, stream, begun):
    """How a long request to a replica ends: the length of its text, or the error."""
    request = chat("Tell me a long story.", **LONG)
    with replicas.client(name, max_retries=0) as client:
        try:
            if not stream:
                return len(client.chat.completions.create(**request).choices[0].message.content)
            length = 0
            for piece in client.chat.completions.create(**request, stream=True):
                length += len(piece.choices[0].delta.content or "")
                begun.release()
        except openai.APIError as error:
            return error
        return length


def test_a_killed_replica_loses_its_own_requests_only(replicas, expected):
    names, begun = replicas.names(), threading.Semaphore(0)
    wanted = [(name, stream) for name in names for stream in (True, False)]
    with ThreadPoolExecutor(len(wanted)) as pool:
        running = [
            pool.submit(outcome, replicas, name, stream=stream, begun=begun)
            for name, stream in wanted
        ]
        until(lambda: list(replicas.running().values()) == [2, 2])
        for _ in range(2):
            assert begun.acquire(timeout=60)
        os.kill(processes(replicas.session, "EngineReplica")[0], signal.SIGKILL)
        with replicas.client() as client:  # its retries are those of every OpenAI client
            answer = client.chat.completions.create(**chat(QUESTIONS[0], max_tokens=NUM_TOKENS))
            assert answer.choices[0].message.content == expected[QUESTIONS[0]]
        ends = [(*request, end.result(120)) for request, end in zip(wanted, running, strict=True)]
    lost = {name for name, _, end in ends if isinstance(end, openai.APIError)}
    assert len(lost) == 1
    for name, stream, end in ends:
        if name not in lost:
            assert end > 100
        else:
            assert "The replica that worked on this request is gone" in str(end)
            assert stream or end.status_code == 503
    (new,) = set(until(lambda: len(replicas.names()) == 2 and replicas.names())) - set(names)
    with replicas.client(new) as client:
        answer = client.chat.completions.create(**chat(QUESTIONS[0], max_tokens=NUM_TOKENS))
    assert answer.choices[0].message.content == expected[QUESTIONS[0]]
