"""Readers: coroutines that recognise a call, fed with one character after the other.

A reader is primed with ``next``, then gets characters by ``send`` until it returns, with the last
character of the call, or raises :class:`NotACallError` at the first that does not fit.
"""

from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

from astrai_api.answer_parts import AnswerPart, ContentText, ToolCallArguments, ToolCallStart

T = TypeVar("T")
Reading: TypeAlias = Generator[None, str, T]
"""Takes characters and gives a value at its end."""


class NotACallError(Exception):
    """The text is no call.

    Args:
        char: the first character that does not fit.
    """

    def __init__(self, char: str) -> None:
        super().__init__(char)
        self.char = char


class Calls:
    """What has been found so far: the calls, and the content between them.

    Args:
        names: of the tools on offer.

    Attributes:
        names: of the tools on offer.
        is_open: the current reader has seen enough to know that nothing but a call is meant.
        num_started: calls whose names are out.
        has_news: more of a call was found since this was last set to False.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.is_open = False
        self.num_started = 0
        self.has_news = False
        self._parts: list[AnswerPart] = []
        self._pieces: list[str] = []
        self._pieces_are_content = False

    def start(self, name: str) -> None:
        """A call begins for certain."""
        self._join()
        self._parts.append(ToolCallStart(self.num_started, name))
        self.num_started += 1
        self.has_news = True

    def add_arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        self._add(text, is_content=False)
        self.has_news = True

    def end(self) -> None:
        """The call that began last is whole."""
        self.has_news = True

    def add_content(self, text: str) -> None:
        """Text that belongs to no call."""
        self._add(text, is_content=True)

    def take(self) -> list[AnswerPart]:
        """What was found since the last time."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def _add(self, text: str, *, is_content: bool) -> None:
        if is_content is not self._pieces_are_content:
            self._join()
            self._pieces_are_content = is_content
        self._pieces.append(text)

    def _join(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text and self._pieces_are_content:
            self._parts.append(ContentText(text))
        elif text:
            self._parts.append(ToolCallArguments(self.num_started - 1, text))


def read_literal(text: str, first: str) -> Reading[None]:
    """A fixed text, whose first character has come already."""
    char = first
    for place, expected in enumerate(text):
        if place:
            char = yield
        if char != expected:
            raise NotACallError(char)


def read_space() -> Reading[str]:
    """White space; gives the character behind it."""
    while (char := (yield)).isspace():
        pass
    return char


def read_name(names: Iterable[str], first: str, ends: str) -> Reading[tuple[str, str]]:
    """One of several names; gives it, and the character behind it, which is one of ``ends``."""
    name, char = "", first
    while char not in ends or name not in names:
        name += char
        if not any(known.startswith(name) for known in names):
            raise NotACallError(char)
        char = yield
    return name, char
