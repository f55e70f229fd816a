"""Finds the calls in an answer; what is no call is content."""

import re
from collections.abc import Callable, Iterable

from astrai_api.answer_parts import AnswerPart
from astrai_api.tools.reading import Calls, NotACallError, Reading

Reader = Callable[[Calls], Reading[None]]
"""Begins to read a call."""


class CallParser:
    """A parser that tries to read a call wherever one may begin.

    While a call is read its text is held back; if it turns out to be none, its first character
    becomes content and the rest is looked at again. White space beside calls is dropped.

    Args:
        read: reads a call, tag and all.
        names: of the tools on offer.
        anywhere: characters that a call may begin with.
        on_new_lines: those of calls that only begin lines.
    """

    def __init__(
        self, read: Reader, names: Iterable[str], *, anywhere: str, on_new_lines: str = ""
    ) -> None:
        self._begin = read
        self._calls = Calls(names)
        self._anywhere = anywhere
        self._first_chars = re.compile(f"[{re.escape(anywhere + on_new_lines)}]")
        self._reading: Reading[None] | None = None
        self._num_started = 0
        self._held: list[str] = []
        self._space = ""
        self._is_fresh = True

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; gives the parts that became certain."""
        while text:
            text = self._look(text) if self._reading is None else self._read(self._reading, text)
        return self._calls.take()

    def finish(self) -> list[AnswerPart]:
        """The end of the text: an unfinished call keeps what was passed on, and gets no more."""
        if self._reading is None:
            self._calls.add_content(self._space)
        elif not (self._is_started or self._calls.is_open):
            self._calls.add_content(self._space + "".join(self._held))
        return self._calls.take()

    @property
    def _is_started(self) -> bool:
        """Whether the current reader has found a call."""
        return self._calls.num_started > self._num_started

    def _look(self, text: str) -> str:
        """Take content up to where a call may begin; gives the rest."""
        for match in self._first_chars.finditer(text):
            before = text[: match.start()]
            if match[0] in self._anywhere or self._begins_line(before):
                self._add_content(before)
                self._num_started = self._calls.num_started
                self._calls.is_open = False
                self._reading = self._begin(self._calls)
                next(self._reading)
                return text[match.start() :]
        self._add_content(text)
        return ""

    def _read(self, reading: Reading[None], text: str) -> str:
        """Go on with a call as far as it goes; gives the rest."""
        for place, char in enumerate(text):
            self._held.append(char)
            try:
                reading.send(char)
            except StopIteration:
                self._forget_held()
                self._reading = None
                return text[place + 1 :]
            except NotACallError:
                return self._give_up() + text[place + 1 :]
            if self._calls.has_news:
                self._forget_held()
        return ""

    def _forget_held(self) -> None:
        """What was held back has turned out to be part of a call."""
        self._calls.has_news = False
        self._held.clear()
        self._space = ""
        self._is_fresh = True

    def _give_up(self) -> str:
        """Back to content; gives the text that is to be looked at again."""
        held = "".join(self._held)
        self._held.clear()
        self._reading = None
        if self._is_started:
            return held
        self._calls.add_content(self._space + held[0])
        self._space = ""
        self._is_fresh = False
        return held[1:]

    def _begins_line(self, before: str) -> bool:
        """Whether what follows some text is the first of its line, or of the answer."""
        before = self._space + before
        content = before.rstrip()
        return "\n" in before[len(content) :] or (self._is_fresh and not content)

    def _add_content(self, text: str) -> None:
        """Add text between calls; white space at its end waits for what follows."""
        if self._is_fresh and self._calls.num_started:
            text = text.lstrip()
        content = text.rstrip()
        if content:
            self._calls.add_content(self._space + content)
            self._space = ""
            self._is_fresh = False
        self._space += text[len(content) :]
