"""Splits an answer into reasoning and the rest, as it comes."""

from typing import Literal

from astrai_api.answer_parts import AnswerParser, AnswerPart, ReasoningText
from astrai_api.unfinished_tag import start_of_unfinished
from astrai_engine.reasoning_tags import ReasoningTags


class ReasoningParser:
    """Takes the reasoning off the beginning of an answer; another parser reads the rest.

    White space around the reasoning and before the rest belongs to neither. An answer that ends
    inside the reasoning has no rest.

    Args:
        tags: what stands around the reasoning.
        inner: reads the rest.
        is_open: the answer begins inside the reasoning; a start tag it repeats is skipped.
    """

    def __init__(self, tags: ReasoningTags, inner: AnswerParser, *, is_open: bool) -> None:
        self._tags = tags
        self._inner = inner
        self._is_open = is_open
        self._place: Literal["before", "inside", "behind", "answer"] = "before"
        self._has_begun = False
        self._held = ""

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; gives the parts that became certain."""
        self._held += text
        parts: list[AnswerPart] = []
        if self._place == "before":
            self._find_start()
        if self._place == "inside":
            parts += self._reason()
        if self._place == "behind":
            self._held = self._held.lstrip()
            self._place = "answer" if self._held else "behind"
        if self._place == "answer":
            parts += self._inner.push(self._held)
            self._held = ""
        return parts

    def finish(self) -> list[AnswerPart]:
        """The end of the text: gives what was held back."""
        parts: list[AnswerPart] = []
        if self._place == "inside" or (self._place == "before" and self._is_open):
            parts += self._reasoning(self._held.rstrip())
        elif self._place == "before":
            parts += self._inner.push(self._held)
        return parts + self._inner.finish()

    def _find_start(self) -> None:
        """Decide whether the answer begins with reasoning, once enough of it is there."""
        text, start = self._held.lstrip(), self._tags.start
        if text.startswith(start):
            self._held = text.removeprefix(start)
            self._place = "inside"
        elif not start.startswith(text):
            self._place = "inside" if self._is_open else "answer"

    def _reason(self) -> list[AnswerPart]:
        """Take the reasoning that is certain; white space and half a tag may yet be its end."""
        reasoning, end, rest = self._held.partition(self._tags.end)
        if end:
            self._held = rest
            self._place = "behind"
            return self._reasoning(reasoning.rstrip())
        certain = self._held[: start_of_unfinished(self._held, [self._tags.end])].rstrip()
        self._held = self._held[len(certain) :]
        return self._reasoning(certain)

    def _reasoning(self, text: str) -> list[AnswerPart]:
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return [ReasoningText(text)] if text else []
