"""Calls as Mistral writes them: a list behind a tag, or since 2025 a tag for each call.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]
[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
"""

from collections.abc import Sequence
from dataclasses import dataclass

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.call_grammar import (
    Schemas,
    auto_schemas,
    calls_grammar,
    in_a_row,
    quoted,
    required_schemas,
    tool_rules,
)
from astrai_api.tools.call_parser import CallParser
from astrai_api.tools.json_call import CallObject
from astrai_api.tools.reading import (
    Calls,
    NotACallError,
    Reading,
    read_literal,
    read_name,
    read_space,
)
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import ANY_TEXT, Grammar

_TAG = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"


@dataclass(frozen=True, slots=True)
class MistralFormat:
    """The formats of Mistral's models. Both are read; one of them is enforced.

    Attributes:
        tags_each: a tag for each call, rather than one for a list.
    """

    tags_each: bool = False

    @property
    def name(self) -> str:
        """Its name in settings."""
        return "mistral"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tags."""
        return (_TAG, _ID, _ARGUMENTS)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer."""
        return CallParser(_read, [tool.name for tool in tools], anywhere=_TAG[0])

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """One call, or several."""
        schemas = required_schemas(tools)
        tag = f"tag: {quoted(_TAG)}"
        if self.tags_each:
            start = in_a_row("call", "", parallel=parallel)
            return calls_grammar(
                f"start: {start}", "call: tag tool", tag, *self._tool_rules(tools, schemas)
            )
        calls = in_a_row("tool", ", ", parallel=parallel)
        return calls_grammar(
            f'start: tag " "? "[" {calls} "]"', tag, *self._tool_rules(tools, schemas)
        )

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, in which the tag begins calls."""
        schemas = auto_schemas(tools)
        if schemas is None:
            return None
        calls = in_a_row("tool", ", ", parallel=True)
        return calls_grammar(
            "start: call* rest",
            "call: until tool" if self.tags_each else f'call: until " "? "[" {calls} "]"',
            f"until[lazy]: {ANY_TEXT} {quoted(_TAG)}",
            f"rest: {ANY_TEXT}",
            *self._tool_rules(tools, schemas),
        )

    def _tool_rules(self, tools: Sequence[Tool], schemas: Schemas) -> list[str]:
        if self.tags_each:
            arguments = f"arguments: {quoted(_ARGUMENTS)}"
            return [arguments, *tool_rules(tools, schemas, _named_body)]
        return tool_rules(tools, schemas, _listed_body)


def _listed_body(name: str, arguments: str) -> str:
    begin = f'{{"name": {quoted(name)}, "arguments": '
    return f'{quoted(begin)} {arguments} "}}"'


def _named_body(name: str, arguments: str) -> str:
    return f"{quoted(name)} arguments {arguments}"


def _read(calls: Calls) -> Reading[None]:
    yield from read_literal(_TAG, (yield))
    calls.is_open = True
    first = yield from read_space()
    if first == "[":
        yield from _read_list(calls)
    elif first == "{":
        yield from CallObject(calls).read(first)
    else:
        yield from _read_named(calls, first)


def _read_list(calls: Calls) -> Reading[None]:
    char = ","
    while char == ",":
        first = yield from read_space()
        yield from CallObject(calls).read(first)
        char = yield from read_space()
    if char != "]":
        raise NotACallError(char)


def _read_named(calls: Calls, first: str) -> Reading[None]:
    name, char = yield from read_name(calls.names, first, "{[ \n")
    if char.isspace():
        char = yield from read_space()
    if char == "[":
        char = yield from _read_tags()
    yield from CallObject(calls).read_arguments(name, char)


def _read_tags() -> Reading[str]:
    """Tags between name and arguments; gives the character behind them."""
    char = yield
    if char == _ID[1]:
        yield from read_literal(_ID[1:], char)
        while (char := (yield)).isalnum():
            pass
        yield from read_literal(_ARGUMENTS, char)
    else:
        yield from read_literal(_ARGUMENTS[1:], char)
    return (yield from read_space())
