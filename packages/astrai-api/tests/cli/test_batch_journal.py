import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_api.cli.batch_journal import BatchJournal
from astrai_api.cli.exits import CommandError


def good(text):
    return {"custom_id": text, "response": {"status_code": 200, "body": text}}


def lost(text):
    return {"custom_id": text, "response": {"status_code": 503, "body": text}}


def test_results_are_written_in_the_order_asked_for(tmp_path):
    path, output = tmp_path / "partial", tmp_path / "out"
    with BatchJournal(path, "t") as journal:
        for key in "bca":
            journal.append(key, good(key))
        journal.finish("abc", output)
    assert [json.loads(line) for line in output.read_text().splitlines()] == [
        good(key) for key in "abc"
    ]
    assert not path.exists()


def test_a_failure_of_the_server_is_forgotten_on_resumption(tmp_path):
    path = tmp_path / "partial"
    with BatchJournal(path, "t") as journal:
        journal.append("a", lost("a"))
        assert "a" in journal
    with BatchJournal(path, "t") as journal:
        assert "a" not in journal
        journal.append("a", good("a"))
    with BatchJournal(path, "t") as journal:
        assert journal.result("a") == good("a")


def test_another_target_is_refused(tmp_path):
    path = tmp_path / "partial"
    with BatchJournal(path, "one"):
        pass
    with pytest.raises(CommandError, match="was begun with one, not two"):
        BatchJournal(path, "two")


@pytest.mark.parametrize("content", [b"precious\n", b"[]\n", b'{"x": 1}\n'])
def test_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "partial"
    path.write_bytes(content)
    with pytest.raises(CommandError, match="holds something else"):
        BatchJournal(path, "t")
    assert path.read_bytes() == content


def test_a_place_where_nothing_can_be_written(tmp_path):
    with pytest.raises(CommandError, match="can't be written"):
        BatchJournal(tmp_path, "t")


@settings(max_examples=40)
@given(cut=st.integers(min_value=0, max_value=400), texts=st.lists(st.text(max_size=9), max_size=5))
def test_whatever_a_crash_cuts_off_the_rest_is_kept(tmp_path_factory, cut, texts):
    path = tmp_path_factory.mktemp("journal") / "partial"
    with BatchJournal(path, "t") as journal:
        for number, text in enumerate(texts):
            journal.append(str(number), good(text))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    kept_lines = path.read_bytes().count(b"\n")
    with BatchJournal(path, "t") as journal:
        kept = [number for number in range(len(texts)) if str(number) in journal]
        assert kept == list(range(max(0, kept_lines - 1)))
        for number, text in enumerate(texts):
            if number not in kept:
                journal.append(str(number), good(text))
    with BatchJournal(path, "t") as journal:
        assert [journal.result(str(n)) for n in range(len(texts))] == list(map(good, texts))
