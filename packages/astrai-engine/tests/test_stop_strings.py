"""Stop strings in text that comes in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_engine.stop_strings import StopStrings


def run(pieces, stops):
    """Push pieces until a stop matches; gives what was shown piece by piece, and the stop."""
    strings = StopStrings(stops)
    shown = []
    for piece in pieces:
        shown.append(strings.push(piece))
        if strings.matched is not None:
            break
    shown.append(strings.finish())
    return shown, strings.matched


def reference(text, stops):
    """The whole text at once: the leftmost stop, the shorter one at equal places."""
    places = [(text.find(stop), len(stop), stop) for stop in stops if stop and stop in text]
    if not places:
        return text, None
    at, _, stop = min(places)
    return text[:at], stop


@st.composite
def streams(draw):
    pieces = draw(st.lists(st.text("ab", max_size=2), max_size=8))
    stops = draw(st.lists(st.text("ab", max_size=4), max_size=3))
    return pieces, stops


@settings(max_examples=500)
@given(streams())
def test_equals_cutting_the_whole_text(stream):
    """B098: however the text is split, the result is that of the whole text."""
    pieces, stops = stream
    shown, stop = run(pieces, stops)
    assert ("".join(shown), stop) == reference("".join(pieces), stops)


@given(streams())
def test_text_is_shown_as_soon_as_no_stop_can_claim_it(stream):
    """Held text is always the beginning of some stop string."""
    pieces, stops = stream
    strings = StopStrings(stops)
    given_text = shown = ""
    for piece in pieces:
        given_text, shown = given_text + piece, shown + strings.push(piece)
        if strings.matched is not None:
            return
        held = given_text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_in_several_tokens_never_shows():
    """B069: no part of a stop string is streamed."""
    assert run(["DEF", "G", "HI", "J"], ["DEFGHIJ"]) == (["", "", "", "", ""], "DEFGHIJ")


def test_a_stop_may_begin_inside_a_token():
    """B071: the text before the stop is kept to the character."""
    shown, stop = run(["The", " quick", " brown", " fox"], ["own fox"])
    assert ("".join(shown), stop) == ("The quick br", "own fox")


def test_nothing_after_the_stop_leaks():
    """B073: text that came with or after the stop is dropped."""
    strings = StopStrings(["five"])
    assert strings.push("one, two, three, four, five, six") == "one, two, three, four, "
    assert strings.push(" seven") == ""
    assert strings.finish() == ""
    assert strings.matched == "five"


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_empty_stops_are_none(stops):
    """B074: an empty stop string never matches."""
    assert run(["a", "b"], stops) == (["a", "b", ""], None)


def test_a_stop_at_the_very_start():
    """B075: the text is empty and the stop is reported."""
    assert run(["X"], ["X"]) == (["", ""], "X")


def test_an_unfinished_stop_is_text_in_the_end():
    assert run(["say EN"], ["END"]) == (["say ", "EN"], None)


def test_a_complete_stop_waits_for_one_that_began_before():
    """The leftmost match wins, even when it is complete later."""
    assert run(["ab", "c", "d"], ["abcd", "bc"])[1] == "abcd"
    shown, stop = run(["ab", "c", "x"], ["abcd", "bc"])
    assert ("".join(shown), stop) == ("a", "bc")


def test_the_end_decides_for_a_waiting_stop():
    shown, stop = run(["abc"], ["abcd", "bc"])
    assert (shown, stop) == (["", "a"], "bc")


def test_the_shorter_of_two_at_the_same_place_is_reported():
    assert run(["x abc"], ["abc", "ab"])[1] == "ab"
