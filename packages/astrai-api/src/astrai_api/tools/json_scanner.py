"""JSON recognised character by character."""

import re
from enum import Enum, auto

from astrai_engine.grammar import MAX_DEPTH

_SPACE = " \t\n\r"
_SCALAR_CHARS = frozenset("+-.0123456789Eaeflnrstu")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)


class NotJsonError(Exception):
    """The text is not JSON from its last character on."""


class _Next(Enum):
    """What may come next, apart from white space."""

    VALUE = auto()
    ITEM_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """Follows one JSON object, array or string to its end.

    It is strict, and refuses nesting deeper than ``MAX_DEPTH`` levels.
    """

    def __init__(self) -> None:
        self._next = _Next.VALUE
        self._open: list[str] = []
        self._scalar = ""
        self._in_string = False
        self._escape = ""

    def push(self, char: str) -> bool:
        """Add a character; tells whether it is the last.

        Raises:
            NotJsonError: it does not fit.
        """
        if self._in_string:
            self._push_string(char)
        elif self._scalar and char in _SCALAR_CHARS:
            self._scalar += char
            return False
        else:
            self._end_scalar()
            if char not in _SPACE:
                self._push_token(char)
        return not (self._open or self._in_string)

    def _push_string(self, char: str) -> None:
        if self._escape:
            self._push_escape(char)
        elif char == '"':
            self._in_string = False
        elif char == "\\":
            self._escape = char
        elif char < " ":
            raise NotJsonError

    def _push_escape(self, char: str) -> None:
        self._escape += char
        if not re.fullmatch(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{0,4})', self._escape):
            raise NotJsonError
        if self._escape[1] != "u" or len(self._escape) == 6:
            self._escape = ""

    def _end_scalar(self) -> None:
        if self._scalar:
            if not _SCALAR.fullmatch(self._scalar):
                raise NotJsonError
            self._scalar = ""

    def _push_token(self, char: str) -> None:
        expected = self._next
        if char in "}]" and self._open and self._open[-1] == {"}": "{", "]": "["}[char]:
            if expected not in {_Next.COMMA_OR_END, _Next.KEY_OR_END, _Next.ITEM_OR_END}:
                raise NotJsonError
            self._open.pop()
            self._next = _Next.COMMA_OR_END
        elif expected in {_Next.KEY, _Next.KEY_OR_END} and char == '"':
            self._in_string = True
            self._next = _Next.COLON
        elif expected is _Next.COLON and char == ":":
            self._next = _Next.VALUE
        elif expected is _Next.COMMA_OR_END and char == ",":
            self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
        elif expected in {_Next.VALUE, _Next.ITEM_OR_END}:
            self._begin_value(char)
        else:
            raise NotJsonError

    def _begin_value(self, char: str) -> None:
        self._next = _Next.COMMA_OR_END
        if char in "{[" and len(self._open) < MAX_DEPTH:
            self._open.append(char)
            self._next = _Next.KEY_OR_END if char == "{" else _Next.ITEM_OR_END
        elif char == '"':
            self._in_string = True
        elif self._open and char in "-0123456789tfn":
            self._scalar = char
        else:
            raise NotJsonError
