from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.events import TokenLogprob
from astrai_engine.testing import PieceTokenizer
from astrai_engine.text_stream import TextStream


def run(pieces, stops=(), *, may_stop_from=0):
    """Push every piece; gives (shown text, matched stop, logprob entries)."""
    stream = TextStream(PieceTokenizer(pieces), tuple(stops))
    text, entries = "", []
    for i, piece in enumerate(pieces):
        entry = TokenLogprob(i, piece.decode("utf-8", "replace"), piece, -1.0)
        text += stream.push(i, entry, may_stop=i >= may_stop_from)
        entries += stream.take_logprobs()
        if stream.matched is not None:
            return text, stream.matched, entries
    text += stream.finish()
    return text, stream.matched, entries + list(stream.take_logprobs())


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched"),
    [
        ([b"DEF", b"G", b"HI", b"J"], ["DEFGHIJ"], "", "DEFGHIJ"),  # B069
        ([b"The quick br", b"own", b" fox"], ["own fox"], "The quick br", "own fox"),  # B071
        ([b"one, two, three, four, fi", b"ve, six"], ["five"], "one, two, three, four, ", "five"),
        ([b"X"], ["X"], "", "X"),  # B075
        ([b"...", b"bar"], ["foo", "bar"], "...", "bar"),  # B076
        ([b"alpha ", b"beta"], ["beta"], "alpha ", "beta"),  # B077
        ([b"ab", b"c"], ["abd"], "abc", None),
        ([b"no stop"], [], "no stop", None),
    ],
)
def test_text_ends_before_the_stop(pieces, stops, text, matched):
    """B069, B071, B073, B075, B076, B077."""
    shown, stop, _ = run(pieces, stops)
    assert (shown, stop) == (text, matched)


def test_a_stop_does_not_count_before_min_tokens():
    shown, stop, _ = run([b"a", b"STOP", b"b", b"STOP"], ["STOP"], may_stop_from=2)
    assert (shown, stop) == ("aSTOPb", "STOP")


def test_logprobs_end_where_the_text_ends():
    """B060: no entry for a token whose text was cut off whole."""
    _, _, entries = run([b"one", b" two", b" th", b"ree", b" four"], [" three"])
    assert [entry.token for entry in entries] == ["one", " two"]


def test_a_token_cut_in_its_middle_keeps_its_entry():
    text, _, entries = run([b"one", b" two three"], [" three"])
    assert text == "one two"
    assert b"".join(entry.token_bytes for entry in entries).startswith(text.encode())


def test_bytes_of_one_character_keep_their_entries():
    text, _, entries = run([b"a", "é".encode()[:1], "é".encode()[1:], b"b"])
    assert text == "aéb"
    assert len(entries) == 4


def test_the_entry_of_a_control_token_follows_the_text_before_it():
    _, _, entries = run([b"", b"a", b"", b"b", b""])
    assert [entry.token for entry in entries] == ["", "a", "", "b", ""]


def test_a_stop_cuts_the_entries_of_control_tokens_too():
    _, stop, entries = run([b"one", b"", b" th", b"", b"ree"], [" three"])
    assert stop == " three"
    assert [entry.token for entry in entries] == ["one", ""]


@given(
    text=st.text(alphabet="ab é€🙂", max_size=24),
    stops=st.lists(st.text(alphabet="ab é", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 80), max_size=12),
)
def test_any_split_gives_the_text_cut_at_the_leftmost_stop(text, stops, cuts):
    """B098: against a search of the whole text, with splits inside characters too."""
    raw = text.encode()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    pieces = [raw[a:b] for a, b in pairwise(places)]
    shown, matched, entries = run(pieces, stops)
    found = [text.find(stop) for stop in stops if stop in text]
    assert shown == (text[: min(found)] if found else text)
    assert (matched is not None) == bool(found)
    joined = b"".join(entry.token_bytes for entry in entries)
    assert raw.startswith(joined)
    assert joined.decode("utf-8", "ignore").startswith(shown) or joined == shown.encode()
