import json
import signal
import subprocess
import sys
import textwrap

import pytest

from astrai_api.testing import FakeEngine

NUM_LINES = 40


def request(number, **changes):
    body = {"messages": [{"role": "user", "content": f"question {number}"}], "temperature": 0}
    line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**line, "body": body, **changes}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def echo(asked):
    return f"answer to {asked.messages[-1]['content']}" if asked.messages else "a text"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def stable(path):
    """The file without what differs by nature: ids and times of the answers."""
    results = read(path)
    for result in results:
        body = result["response"]["body"]
        del body["id"], body["created"]
    return results


@pytest.fixture
def batch(tmp_path):
    return write(tmp_path / "in.jsonl", [request(number) for number in range(NUM_LINES)])


KILLED = """
    import os, signal, sys
    from astrai_api.cli import main, target
    from astrai_api.testing import FakeEngine

    class Dies(FakeEngine):
        async def submit_async(self, request):
            if len(self.requests) == 17:
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().submit_async(request)

    def echo(asked):
        return f"answer to {asked.messages[-1]['content']}"

    target.load_engine = lambda _: Dies(default=echo)
    target.resolve_source = lambda *_, **__: None
    main.app(sys.argv[1:])
"""


def test_a_killed_batch_resumes_and_gives_the_same_file(astrai, local_engine, batch, tmp_path):
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    local_engine(FakeEngine(default=echo))
    assert astrai("run-batch", batch, "-o", whole).exit_code == 0

    arguments = ["run-batch", str(batch), "-o", str(resumed), "--concurrency", "4"]
    script = [sys.executable, "-c", textwrap.dedent(KILLED), *arguments]
    assert subprocess.run(script, check=False, timeout=60).returncode == -signal.SIGKILL
    assert not resumed.exists()
    kept = (tmp_path / "resumed.jsonl.partial").read_text().count('"key"')
    assert 13 <= kept <= 17

    engine = FakeEngine(default=echo)
    local_engine(engine)
    result = astrai(*arguments)
    assert result.exit_code == 0, result.stderr
    assert f"{kept} of {NUM_LINES} requests are done already." in result.stderr
    assert len(engine.requests) == NUM_LINES - kept
    assert stable(resumed) == stable(whole)
    assert [line["custom_id"] for line in stable(whole)] == [f"c{n}" for n in range(NUM_LINES)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.jsonl", "resumed.jsonl", "whole.jsonl",
    ]  # fmt: skip


def test_wrong_lines_get_results_and_the_status_says_so(astrai, serve, tmp_path):
    lines = [request(0), request(0), request(1, url="/v1/nowhere"), request(2)]
    lines[3]["body"] = {"messages": []}
    lines.append(request("\ud800"))  # half a character: no text that can be encoded
    output = tmp_path / "out.jsonl"
    file = write(tmp_path / "in.jsonl", lines)
    result = astrai("run-batch", file, "-o", output, "--url", serve(FakeEngine()))
    assert result.exit_code == 5
    assert f"4 of the requests failed; their lines in {output} say why." in result.stderr
    first, second, third, fourth, fifth = read(output)
    assert first["response"]["status_code"] == 200
    assert first["error"] is None
    assert "used by an earlier line" in second["error"]["message"]
    assert third["response"]["status_code"] == 404
    assert fourth["response"]["status_code"] == 400
    assert fifth["custom_id"] == "c\ud800"
    assert "messages" in fourth["response"]["body"]["error"]["message"]


def test_every_endpoint_can_be_asked(astrai, local_engine, tmp_path):
    lines = [
        request(0),
        request(1, url="/v1/completions", body={"prompt": "x", "max_tokens": 3}),
        request(2, url="/v1/responses", body={"input": "x"}),
    ]
    local_engine(FakeEngine())
    output = tmp_path / "out.jsonl"
    result = astrai("run-batch", write(tmp_path / "in.jsonl", lines), "-o", output)
    assert result.exit_code == 0, result.stderr
    kinds = [result["response"]["body"]["object"] for result in read(output)]
    assert kinds == ["chat.completion", "text_completion", "response"]


def test_a_finished_batch_is_not_overwritten_unless_asked(astrai, local_engine, batch, tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_text("precious")
    (tmp_path / "other.partial").write_text("")
    local_engine(FakeEngine(default=echo))
    result = astrai("run-batch", batch, "-o", output)
    assert result.exit_code == 2
    assert "exists already; use --overwrite" in result.stderr
    assert output.read_text() == "precious"
    assert astrai("run-batch", batch, "-o", output, "--overwrite", "-q").stderr == ""
    assert len(stable(output)) == NUM_LINES


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["/nowhere.jsonl", "-o", "x"], 2, "does not exist"),
        (["{batch}"], 2, "--output"),
        (["{batch}", "-o", "/nowhere/x"], 2, "There is no folder /nowhere"),
        (["{batch}", "-o", "{folder}/x", "--url", "127.0.0.1:1"], 3, "No server answers"),
        (["{batch}", "-o", "{folder}/x", "--concurrency", "0"], 2, "--concurrency"),
    ],
)
def test_wrong_input_is_a_sentence(astrai, batch, tmp_path, arguments, status, told):
    filled = [each.format(batch=batch, folder=tmp_path) for each in arguments]
    result = astrai("run-batch", *filled)
    assert result.exit_code == status
    assert told in " ".join(result.stderr.replace("│", " ").split())
