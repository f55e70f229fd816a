"""JSON is followed to its end, and refused at the first character that does not fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_api.tools.json_scanner import JsonScanner, NotJsonError


def scan(text):
    """How many characters the scanner takes; None when it wants more."""
    scanner = JsonScanner()
    return next((place + 1 for place, char in enumerate(text) if scanner.push(char)), None)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    st.lists(VALUES) | st.dictionaries(st.text(), VALUES), st.booleans(), st.sampled_from([None, 1])
)
def test_all_json_is_taken_and_nothing_more(value, ensure_ascii, indent):
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    assert scan(text + "}") == len(text)
    assert scan(text[:-1]) is None


@given(st.text('{}[]",:\\u0a1.-e \ntrueflsn', max_size=12))
def test_it_agrees_with_the_library(text):
    """What it takes is JSON; what it refuses is not the beginning of any."""
    text = "{" + text
    try:
        taken = scan(text)
    except NotJsonError:
        with pytest.raises(ValueError, match=":"):
            json.loads(text)
    else:
        if taken is not None:
            assert isinstance(json.loads(text[:taken]), dict)


@pytest.mark.parametrize(
    "text",
    [
        *('{"a" 1}', "{'a'}", '{"a": 1,}', "[1,]", "[,]", "[1 2]", "[01]", "[1.]", "[-]", "[t]"),
        *(
            '["\\x"]',
            '["\\u12g4"]',
            '["\n"]',
            "[}",
            '{"a": 1]',
            '{"a"}',
            "[NaN]",
            "1",
            "]",
            "[" * 65,
        ),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(NotJsonError):
        scan(text)
