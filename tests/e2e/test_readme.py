"""The README's curl lines, run as printed against the README's server."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
ANSWER = "The capital of France is Paris."


def curl_commands():
    blocks = re.findall(r"```(?:bash|sh|shell)\n(.*?)```", README.read_text(), re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith("curl")]


def run(command, server):
    arguments = shlex.split(command.replace("http://localhost:8000", server.url))
    done = subprocess.run([*arguments, "-sS"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_both_protocols_streamed_and_not():
    commands = curl_commands()
    for path in ("/v1/chat/completions", "/v1/messages"):
        for streamed in (True, False):
            assert any(path in c and ('"stream": true' in c) is streamed for c in commands)


@pytest.mark.parametrize("command", curl_commands(), ids=range(len(curl_commands())))
def test_a_curl_line_gives_the_answer(command, server, sse_events):
    output = run(command, server)
    if '"stream": true' in command:
        pieces = []
        for _, data in sse_events(output):
            if data != "[DONE]":
                pieces.append(streamed_text(json.loads(data)))
        assert "".join(pieces) == ANSWER
    elif "/v1/chat/completions" in command:
        assert json.loads(output)["choices"][0]["message"]["content"] == ANSWER
    elif "/v1/messages" in command:
        assert json.loads(output)["content"] == [{"type": "text", "text": ANSWER}]
    else:
        assert json.loads(output)


def streamed_text(event):
    if event.get("type") == "content_block_delta":
        return event["delta"]["text"]
    choices = event.get("choices") or [{"delta": {}}]
    return choices[0]["delta"].get("content") or ""


def test_the_log_says_where_to_point_a_client(server):
    for expected in (server.url, "SmolLM2-135M-Instruct", "cpu", "backend", "32,768"):
        assert expected in server.log, server.log
