"""What a format of tool calls is: how a model writes them, and how to make it."""

from collections.abc import Sequence
from typing import Protocol

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar


class ToolFormat(Protocol):
    """One way to write tool calls as text."""

    @property
    def name(self) -> str:
        """Its name in settings."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that calls are marked with: the parser has to see their text."""

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer.

        Args:
            tools: those on offer; what calls another one is content.
        """

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """The answer is a call, whose arguments match their schema, and nothing else.

        Args:
            tools: at least one; any of them may be called.
            parallel: several calls may follow one another.

        Raises:
            InvalidRequestError: the schemas are too large or too deep.
        """

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, but a call that it begins names a tool and matches what that one demands.

        Args:
            tools: those on offer. Arguments of strict ones match their schema, those of the
                others are any object.

        Returns:
            None when no tool is strict: nothing is to be enforced then.

        Raises:
            InvalidRequestError: the schemas are too large or too deep.
        """
