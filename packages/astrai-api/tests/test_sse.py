"""Frames of a stream."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_api.sse import COMMENT_PING, DONE, HOLE, EventTemplate, encode_event, encode_json


def test_event():
    assert encode_event({"a": "é"}) == b'data: {"a":"\\u00e9"}\n\n'
    assert encode_event({"a": 1}, "ping") == b'event: ping\ndata: {"a":1}\n\n'


@given(st.text())
def test_any_text_is_one_line_to_any_reader(text):
    frame = encode_event({"text": text}).decode("ascii")
    assert len(frame.splitlines()) == 2
    assert json.loads(frame.removeprefix("data: ")) == {"text": text}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_is_strict(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json([value])


def test_a_reader_skips_pings_and_ends_at_done(parse_sse):
    assert parse_sse(COMMENT_PING + encode_event(1) + COMMENT_PING + DONE) == [
        (None, "1"),
        (None, "[DONE]"),
    ]


class TestTemplates:
    @pytest.mark.parametrize(
        "value",
        ["", 'naïve \u2028\x00"\\', 7, [1, {"a": None}], HOLE],
        ids=["nothing", "odd text", "number", "list", "hole"],
    )
    def test_filling_is_encoding(self, value):
        template = EventTemplate({"a": HOLE, "b": {"c": HOLE}}, "n")
        expected = encode_event({"a": value, "b": {"c": "x"}}, "n")
        assert template.fill(value, "x") == expected

    def test_every_hole_wants_a_value(self):
        with pytest.raises(ValueError, match="zip"):
            EventTemplate({"a": HOLE}).fill()
