"""Answers without tools and reasoning: all of the text is for the user."""

from astrai_api.answer_parts import AnswerPart, ContentText


class PlainAnswer:
    """A parser that finds nothing but content."""

    def push(self, text: str) -> list[AnswerPart]:
        """The text, as content."""
        return [ContentText(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        """Nothing was held back."""
        return []
