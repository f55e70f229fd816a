"""Text from tokens, without split characters."""

from hypothesis import given
from hypothesis import strategies as st

from astrai_engine.detokenizer import Detokenizer


class Bytes:
    """A vocabulary in which token ``i`` is the i-th entry of a list."""

    def __init__(self, entries):
        self.entries = entries

    def token_bytes(self, token_id):
        return self.entries[token_id]


def pieces_of(entries):
    detokenizer = Detokenizer(Bytes(entries))
    shown = [detokenizer.push(token_id) for token_id in range(len(entries))]
    return [*shown, detokenizer.finish()]


@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=3).map(str.encode))))
def test_pieces_make_the_whole_text(entries):
    """B098: any bytes in any split give the text of all bytes at once."""
    assert "".join(pieces_of(entries)) == b"".join(entries).decode(errors="replace")


@given(st.text(min_size=1), st.integers(1, 4))
def test_no_piece_shows_part_of_a_character(text, size):
    raw = text.encode()
    entries = [raw[i : i + size] for i in range(0, len(raw), size)]
    pieces = pieces_of(entries)
    assert "".join(pieces) == text
    assert pieces[-1] == ""


def test_a_character_shows_with_its_last_byte():
    assert pieces_of([b"\xf0\x9f", b"\x99", b"\x82!"]) == ["", "", "\U0001f642!", ""]


def test_bytes_that_cannot_become_a_character_show_at_once():
    """B062: invalid bytes hold nothing back."""
    assert pieces_of([b"\xf0", b" a", b" b"]) == ["", "\ufffd a", " b", ""]
    assert pieces_of([b"\xff", b" "]) == ["\ufffd", " ", ""]


def test_an_unfinished_character_shows_at_the_end_once():
    """B064: the held tail is flushed, once."""
    detokenizer = Detokenizer(Bytes([b"a\xe6\x97"]))
    assert detokenizer.push(0) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_text_before_the_first_token_never_shows():
    """B065: a prompt that ends inside a character leaks nothing into the answer."""
    assert pieces_of([b"\xa5", b"ok"]) == ["\ufffd", "ok", ""]


def test_control_tokens_have_no_text():
    assert pieces_of([b"a", b"", b"b"]) == ["a", "", "b", ""]
