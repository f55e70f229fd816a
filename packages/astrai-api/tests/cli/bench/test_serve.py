"""``astrai bench serve``, on the scripted engine."""

import json

import pytest

from astrai_api.testing import FakeEngine, Reply
from astrai_engine.errors import GenerationError


def test_a_closed_loop_is_measured_and_kept(astrai, serve, tmp_path):
    engine = FakeEngine()
    kept, page = tmp_path / "run.json", tmp_path / "run.html"
    options = ["-n", 6, "-c", 3, "--warmup", 1, "--prompt-tokens", 9, "--output-tokens", 5]
    result = astrai("bench", "serve", serve(engine), *options, "--json", kept, "--html", page)
    assert result.exit_code == 0, result.stderr
    assert len(engine.requests) == 7
    assert {request.max_tokens for request in engine.requests} == {5}
    assert {request.temperature for request in engine.requests} == {0}
    assert all(request.ignore_eos for request in engine.requests)
    for told in ("answered requests", "time to first text, p99 (ms)", "output tokens/s"):
        assert told in result.stdout
    content = json.loads(kept.read_text())
    assert content["summary"]["completed"] == 6
    assert [each["output_tokens"] for each in content["requests"]] == [5] * 6
    assert content["load"]["description"].startswith("6 requests, 3 at a time; about 9 tokens in")
    assert page.read_text().startswith("<!doctype html>")


def test_an_open_loop_asks_what_a_file_says(astrai, serve, tmp_path):
    engine = FakeEngine()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    result = astrai(
        "bench", "serve", serve(engine), "-n", 3, "--rate", 500, "--warmup", 0,
        "--prompts", prompts, "--endpoint", "completions", "--no-ignore-eos", "--quiet",
    )  # fmt: skip
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(request.prompt for request in engine.requests) == ["one", "one", "two"]
    assert not any(request.ignore_eos for request in engine.requests)


@pytest.mark.parametrize(("limit", "status"), [("100000", 0), ("0", 5)])
def test_limits_decide_the_exit_status(astrai, serve, limit, status):
    url = serve(FakeEngine())
    options = ["-n", 2, "--max-first-ms", limit, "--require", 0.9]
    result = astrai("bench", "serve", url, *options)
    assert result.exit_code == status, result.stderr
    assert "goodput" in result.stdout
    assert ("0.0% of the requests were answered within the limits" in result.stderr) is (
        status == 5
    )


def test_failures_are_counted_and_told(astrai, serve):
    engine = FakeEngine.scripted(Reply("a b"), Reply(refuse=GenerationError("It broke.")))
    result = astrai("bench", "serve", serve(engine), "-n", 2, "-c", 1, "--warmup", 0)
    assert result.exit_code == 5
    assert "1 of 2 requests failed; the first: It broke." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["127.0.0.1:1"], 3, "No server answers at"),
        (["nonsense://"], 2, "is not the address of a server"),
        (["x", "--rate", "-1"], 2, "--rate"),
        (["x", "--arrival", "monthly"], 2, "--arrival"),
        (["x", "--require", "0.5"], 2, "--require needs a limit"),
        (["x", "--shared-prefix-tokens", "999"], 2, "is a part of --prompt-tokens"),
        (["x", "--prompts", "/nowhere"], 2, "--prompts"),
    ],
)
def test_wrong_input_is_a_sentence(astrai, arguments, status, told):
    result = astrai("bench", "serve", *arguments)
    assert result.exit_code == status
    assert told in result.stderr
