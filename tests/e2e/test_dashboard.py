"""Prometheus beside a real server: every query of the dashboard and every alert gives data."""

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time

import httpx
import pytest
import yaml

pytestmark = pytest.mark.dashboard

SERVER = {  # small enough for all that a dashboard shows to happen
    "ASTRAI_MAX_BATCH_SIZE": 2,
    "ASTRAI_MAX_QUEUE": 1,
    "ASTRAI_N_TOKENS": 256,
    "ASTRAI_MAX_SEQ_LEN": 256,
    "ASTRAI_HOST_CACHE_BYTES": 2**24,
}
WINDOW = "15s"


@pytest.fixture(scope="module")
def server(start_server):
    with start_server(**SERVER) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(server, root, tmp_path_factory):
    """The URL of a Prometheus that collects from the server, with the alerts loaded."""
    binary = shutil.which("prometheus")
    assert binary, "Install Prometheus first: apt install prometheus."
    folder = tmp_path_factory.mktemp("prometheus")
    source = root / "docs/deploy/prometheus"
    config = yaml.safe_load((source / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(source / "alerts.yml", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def load(server, prometheus):
    """Some seconds of clients that ask, repeat themselves, hurry and go away."""
    deadline = time.monotonic() + 20
    url = f"{server.url}/v1/completions"

    def ask():
        number = 0
        while time.monotonic() < deadline:
            number += 1
            prompt = f"{number % 3} A story of a fox, " * 12
            body = {"prompt": prompt, "max_tokens": 24, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", url, json=body, timeout=60) as stream:
                for position, _ in enumerate(stream.iter_lines()):
                    if number % 5 == 0 and position > 4:
                        break

    clients = [threading.Thread(target=ask) for _ in range(6)]
    for client in clients:
        client.start()
    yield
    for client in clients:
        client.join(60)


def query(prometheus, expression):
    for variable, value in (("$model", ".*"), ("$instance", ".*"), ("$__rate_interval", WINDOW)):
        expression = expression.replace(variable, value)
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def wait_for_data(prometheus, expression):
    """The values of a query, once it has any that are numbers."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        values = query(prometheus, expression)
        if values and not any(map(math.isnan, values)):
            return values
        time.sleep(0.5)
    raise AssertionError(f"{expression} gives {values}")


def test_every_query_of_the_dashboard_returns_data(load, prometheus, root):
    dashboard = json.loads((root / "docs/deploy/grafana/astrai.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert wait_for_data(prometheus, target["expr"]), panel["title"]


def test_the_variables_find_the_server(load, prometheus):
    answer = httpx.get(f"{prometheus}/api/v1/label/model_name/values").json()
    assert "SmolLM2-135M-Instruct" in answer["data"]


def test_every_alert_is_loaded_and_its_left_side_gives_data(load, prometheus, root):
    (group,) = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    rules = yaml.safe_load((root / "docs/deploy/prometheus/alerts.yml").read_text())
    assert len(group["rules"]) == len(rules["groups"][0]["rules"])
    for rule in group["rules"]:
        assert rule["health"] in ("ok", "unknown"), rule
        left, *_ = re.split(r" (?:>|==) ", rule["query"])
        assert wait_for_data(prometheus, re.sub(r"\[\w+\]", f"[{WINDOW}]", left))
