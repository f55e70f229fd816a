"""An answer in parts: what a model's text means, told as it comes."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the text that the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool is called; its arguments follow.

    Attributes:
        index: which of the answer's calls, from 0.
        name: of the tool, whole; it is one that was offered.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the arguments of a call; the pieces of one call make one JSON object.

    They make only its beginning when the answer was cut, and what the model wrote in its place
    when that is no JSON after all.
    """

    index: int
    text: str


AnswerPart: TypeAlias = ContentText | ReasoningText | ToolCallStart | ToolCallArguments


class AnswerParser(Protocol):
    """Finds the parts of one answer.

    The parts mean the same however the text is cut into pieces: only where they are cut differs.
    """

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; gives the parts that became certain."""

    def finish(self) -> list[AnswerPart]:
        """The end of the text: gives what was held back. Called once."""
