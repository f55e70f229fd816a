"""The ``astrai`` command with a real model, and the lines that its guides print."""

import json
import shlex

import pytest
import typer
from typer.testing import CliRunner

from astrai_api.cli.main import COMMANDS, app

GUIDES = ("docs/guides/command-line.md", "docs/guides/benchmarking.md")
URL = "http://localhost:8000"


@pytest.fixture
def astrai(monkeypatch, tmp_path):
    """Run a line as it is printed, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(line, stdin=None):
        _, *arguments = shlex.split(line)
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, input=stdin)
        assert result.exit_code == 0, (line, result.output)
        return result.stdout

    return run


@pytest.fixture
def printed_lines(code_blocks):
    """Every line of the guides that runs the command, without what is piped into it."""
    lines = [
        line.rpartition("| ")[2] if "| astrai" in line else line
        for guide in GUIDES
        for block in code_blocks(guide, "bash")
        for line in block.code.splitlines()
        if not line.startswith("pip install ")
    ]
    assert all(line.startswith("astrai ") for line in lines)
    return lines


def command_of(words):
    """The command that a line calls, and the words that are its arguments."""
    command = typer.main.get_command(app)
    context = typer.Context(command)
    while hasattr(command, "commands"):
        name, *words = words
        context = command.get_command(context, name).make_context(name, [], resilient_parsing=True)
        command = context.command
    return command, words


def test_every_printed_line_is_one_that_the_command_understands(printed_lines):
    called = set()
    for line in printed_lines:
        command, words = command_of(shlex.split(line)[1:])
        called.add(shlex.split(line)[1])
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
    assert called == set(COMMANDS)


def test_lines_that_ask_a_server_do_what_the_guide_says(astrai, server, printed_lines):
    def line_of(start):
        line = next(line for line in printed_lines if line.startswith(start) and URL in line)
        return line.replace(URL, server.url)

    question = "What is the capital of France?"
    answer = "The capital of France is Paris."
    body = json.loads(astrai(line_of("astrai generate") + " --temperature 0"))
    assert body["choices"][0]["message"]["content"] == answer
    assert astrai(line_of("astrai chat"), stdin=f"{question}\n") == f"{answer}\n"


def test_a_batch_and_a_benchmark_on_a_server(astrai, server, tmp_path):
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "requests.jsonl").write_text(json.dumps(line))
    astrai(f"astrai run-batch requests.jsonl --output results.jsonl --url {server.url}")
    result = json.loads((tmp_path / "results.jsonl").read_text())
    assert result["response"]["body"]["usage"]["completion_tokens"] == 4

    few = "--requests 3 --concurrency 2 --prompt-tokens 40 --shared-prefix-tokens 32"
    astrai(f"astrai bench serve {server.url} {few} --output-tokens 4 --json run.json")
    requests = json.loads((tmp_path / "run.json").read_text())["requests"]
    assert [request["output_tokens"] for request in requests] == [4, 4, 4]
    assert all(request["cached_tokens"] >= 32 for request in requests), "the warm-up shared it"


def test_the_doctor_tells_what_the_server_became(astrai, server):
    found = json.loads(astrai("astrai doctor --json"))
    assert found["engine"]["model"] == "SmolLM2-135M-Instruct (gguf)"
    assert found["memory"]["K/V pool"].endswith(": 32,768 tokens")
    assert found["engine"]["backend"] in server.log
    assert found["problems"] == []
