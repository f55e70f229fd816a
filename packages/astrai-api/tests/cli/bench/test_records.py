import json
from pathlib import Path

import pytest

from astrai_api.cli.bench.records import BenchRun, Limits
from astrai_api.cli.exits import CommandError


def test_a_run_is_read_as_it_was_written(tmp_path, record, run_of):
    run = run_of(record(), record(error="No.", first=None), limits=Limits(first=0.5))
    path = tmp_path / "run.json"
    run.save(path, {"completed": 1})
    assert BenchRun.load_file(path) == run
    content = json.loads(path.read_text())
    assert (content["format"], content["summary"]) == ("astrai-bench/1", {"completed": 1})


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"format": "astrai-bench/2"}'])
def test_anything_else_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CommandError, match="is no result of a benchmark"):
        BenchRun.load_file(path)


def test_a_file_that_cannot_be_written(run_of):
    with pytest.raises(CommandError, match="/nowhere/x can't be written"):
        run_of().save(Path("/nowhere/x"), {})


def test_time_per_token_is_that_after_the_first(record):
    assert record(first=0.1, total=0.5, tokens=5).per_token == pytest.approx(0.1)
    assert record(tokens=1).per_token is None
    assert record(first=None).per_token is None


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        (Limits(), True),
        (Limits(first=0.1, per_token=0.2, total=0.5), True),
        (Limits(first=0.09), False),
        (Limits(per_token=0.19), False),
        (Limits(total=0.49), False),
    ],
)
def test_limits(record, limits, met):
    assert limits.are_met_by(record()) is met
    assert not limits.are_met_by(record(error="No."))
    assert bool(limits) is (limits != Limits())
