"""Request bodies, from bytes to an object."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_api.errors import ApiError
from astrai_api.strict_json import MAX_DEPTH, parse_object

text = st.text(max_size=20)
scalars = st.none() | st.booleans() | st.integers() | text
scalars |= st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(text, v), max_leaves=10)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(text, values, max_size=3), st.booleans())
def test_every_object_is_read_back(value, ensure_ascii):
    assert parse_object(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == value


@settings(deadline=None, max_examples=50)
@given(st.binary())
def test_no_bytes_get_past_as_anything_else(raw):
    try:
        outcome = parse_object(raw)
    except ApiError as error:
        outcome = error.status
    assert outcome == 400 or isinstance(outcome, dict)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{not json", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": Infinity}', "Infinity is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'{"a": "\\ud800"}', "unpaired surrogate"),
        (b'{"\\uDC00": 1}', "unpaired surrogate"),
    ],
)
def test_refusals(raw, words):
    with pytest.raises(ApiError) as caught:
        parse_object(raw)
    assert caught.value.status == 400
    assert words in caught.value.message


def test_surrogate_pairs_and_byte_order_marks_are_fine():
    assert parse_object(b'\xef\xbb\xbf{"a": "\\ud83d\\ude42"}') == {"a": "🙂"}


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1_000, 100_000])
def test_nesting_is_bounded(depth):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        inner = b"1" if opening != b"[" else b""
        raw = b'{"a": ' + opening * depth + inner + closing * depth + b"}"
        with pytest.raises(ApiError, match="nested") as caught:
            parse_object(raw)
        assert caught.value.status == 400


def test_nesting_up_to_the_bound_is_read():
    raw = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert set(parse_object(raw)) == {"a"}


def test_breadth_is_not_depth():
    value = {"a": [[] for _ in range(1000)]}
    assert parse_object(json.dumps(value).encode()) == value
