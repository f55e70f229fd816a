import pytest


@pytest.fixture
def kept(tmp_path, record, run_of):
    """Results of two runs; the second is twice as slow to its first text."""
    paths = []
    for name, first in (("one", 0.1), ("two", 0.2)):
        paths.append(tmp_path / f"{name}.json")
        run_of(record(first=first), name=name).save(paths[-1], {})
    return paths


def test_runs_are_shown_side_by_side(astrai, kept, tmp_path):
    page = tmp_path / "report.html"
    result = astrai("bench", "compare", *kept, "--html", page)
    assert result.exit_code == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if "first text, median" in line)
    assert row.split()[-4:] == ["100.0", "200.0", "(+100", "%)"]
    assert "one and two" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument"),
        (["/nowhere.json"], "is no result of a benchmark"),
        (["{kept}"] * 7, "At most 6 runs"),
    ],
)
def test_wrong_input_is_a_sentence(astrai, kept, arguments, told):
    result = astrai("bench", "compare", *(each.format(kept=kept[0]) for each in arguments))
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_result_without_a_place_to_go(astrai, kept):
    result = astrai("bench", "compare", *kept, "--html", "/nowhere/x.html")
    assert result.exit_code == 2
    assert "/nowhere/x.html can't be written" in result.stderr
