import json

import pytest

from astrai_api.cli.batch_line import has_failed, is_final, read_lines

GOOD = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": []},
}


def lines_of(tmp_path, *lines):
    path = tmp_path / "in.jsonl"
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    )
    return list(read_lines(path))


def test_good_lines_are_read_in_order(tmp_path):
    second = {**GOOD, "custom_id": "b", "body": {"x": 1}}
    first, other = lines_of(tmp_path, GOOD, "", second)
    assert (first.custom_id, first.path, first.problem) == ("a", "/v1/chat/completions", None)
    assert (other.custom_id, other.body) == ("b", {"x": 1})


def test_keys_tell_apart_places_and_contents(tmp_path):
    keys = [line.key for line in lines_of(tmp_path, GOOD, {**GOOD, "custom_id": "b"}, "", "x", "x")]
    assert len(set(keys)) == len(keys)
    assert lines_of(tmp_path, GOOD)[0].key == keys[0]
    assert lines_of(tmp_path, {**GOOD, "body": {}})[0].key != keys[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({**GOOD, "custom_id": 3}, "custom_id is missing"),
        ({**GOOD, "method": "GET"}, "method has to be POST"),
        ({**GOOD, "url": "chat"}, "url has to be a path"),
        ({**GOOD, "url": None}, "url has to be a path"),
        ({**GOOD, "url": "/v1/\u0000"}, "url has to be a path"),
        ('{"a":' + "[" * 10**5, "not JSON"),
        ({**GOOD, "body": "x"}, "body is missing"),
        ({**GOOD, "body": {"stream": True}}, "leave stream out"),
    ],
)
def test_a_wrong_line_says_what_is_wrong_and_where(tmp_path, line, told):
    _, wrong = lines_of(tmp_path, "", {**GOOD, "custom_id": "other"}, line)
    result = wrong.refused()
    assert result["error"]["message"].startswith("Line 3: ")
    assert told in result["error"]["message"]
    assert result["response"] is None
    assert has_failed(result)
    assert is_final(result)


def test_a_name_can_be_used_once(tmp_path):
    first, second = lines_of(tmp_path, GOOD, GOOD)
    assert first.problem is None
    assert second.problem == "Line 2: custom_id 'a' is used by an earlier line."


@pytest.mark.parametrize(
    ("status", "failed", "final"),
    [(200, False, True), (400, True, True), (404, True, True), (500, True, False)],
)
def test_statuses(tmp_path, status, failed, final):
    (line,) = lines_of(tmp_path, GOOD)
    result = line.answered(status, "id", {"x": 1})
    assert result["response"] == {"status_code": status, "request_id": "id", "body": {"x": 1}}
    assert (has_failed(result), is_final(result)) == (failed, final)
