"""Calls as Llama 3.2 and 4 write them: a list of Python calls, sometimes between tags.

    [get_weather(city="Paris"), get_time(zone="CET")]

Without a tag the list begins a line. Llama 3's JSON is read too; tools whose parameters can't be
written as keywords are enforced in it.
"""

import re
from collections.abc import Sequence

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.call_grammar import (
    ANY_OBJECT,
    auto_schemas,
    calls_grammar,
    in_a_row,
    quoted,
    required_schemas,
    text_rules,
)
from astrai_api.tools.call_parser import CallParser
from astrai_api.tools.keyword_grammar import has_keywords, keyword_rules
from astrai_api.tools.llama3_json import (
    JSON_BEGIN,
    JSON_OTHERWISE,
    json_auto_grammar,
    json_grammar,
    read_json_calls,
)
from astrai_api.tools.pythonic_arguments import arguments_as_json
from astrai_api.tools.reading import (
    Calls,
    NotACallError,
    Reading,
    read_literal,
    read_name,
    read_space,
)
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import MAX_DEPTH, Grammar

_START = "<|python_start|>"
_END = "<|python_end|>"
_SEPARATOR = ", "
_BRACKETS = {")": "(", "]": "[", "}": "{"}


class PythonicFormat:
    """The format of Llama 4, and of Llama 3.2 where it is asked for."""

    name = "pythonic"
    special_tokens = (_START, _END)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer."""
        names = [tool.name for tool in tools]
        return CallParser(_read, names, anywhere=_START[0], on_new_lines="[{")

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """One call, or several."""
        schemas = required_schemas(tools)
        if not all(map(has_keywords, schemas)):
            return json_grammar(tools, schemas, parallel=parallel)
        calls = in_a_row("tool", _SEPARATOR, parallel=parallel)
        return calls_grammar(f'start: "[" {calls} "]"', *keyword_rules(tools, schemas))

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, in which the tag, or a line that begins like a call, begins one."""
        schemas = auto_schemas(tools)
        if schemas is None:
            return None
        begins = [rf"\[\s*{re.escape(tool.name)}\(" for tool in tools]
        if not all(schema == ANY_OBJECT or has_keywords(schema) for schema in schemas):
            return json_auto_grammar(tools, schemas, _START, forbidden="|".join(begins))
        lines = {f"line_{number}": begin for number, begin in enumerate(begins)}
        untagged = " | ".join(f"line_{number} rest_{number}" for number in range(len(tools)))
        return calls_grammar(
            "start: call* rest",
            f'call: (tag "[" tool | {untagged}) ({quoted(_SEPARATOR)} tool)* "]"',
            f"tag[lazy]: TEXT {quoted(_START)}",
            *text_rules(lines, forbidden=f"{JSON_BEGIN}|{JSON_OTHERWISE}"),
            *keyword_rules(tools, schemas),
        )


def _read(calls: Calls) -> Reading[None]:
    first = yield
    if first == _START[0]:
        yield from read_literal(_START, first)
        calls.is_open = True
        first = yield from read_space()
    read_calls = read_json_calls if first == "{" else _read_list
    behind = yield from read_calls(calls, first)
    yield from read_literal(_END, behind)


def _read_list(calls: Calls, first: str) -> Reading[str]:
    """Calls in brackets; gives the character behind them.

    Each is passed on when what stands behind it shows that it is one.
    """
    if first != "[":
        raise NotACallError(first)
    char = ","
    while char == ",":
        first = yield from read_space()
        calls.is_open = True
        name, _ = yield from read_name(calls.names, first, "(")
        text = yield from _read_parenthesis()
        char = yield from read_space()
        arguments = arguments_as_json(text)
        if arguments is None or char not in ",]":
            raise NotACallError(char)
        calls.start(name)
        calls.add_arguments(arguments)
    return (yield from read_space())


def _read_parenthesis() -> Reading[str]:
    """Text up to the parenthesis that closes the one before it."""
    text, open_brackets, quote, is_escaped = "", ["("], "", False
    while open_brackets:
        char = yield
        text += char
        if is_escaped or (quote and char == "\\"):
            is_escaped = not is_escaped
        elif quote or char in "\"'":
            quote = "" if char == quote else quote or char
        elif char in "([{" and len(open_brackets) < MAX_DEPTH:
            open_brackets.append(char)
        elif char in "([{)]}" and open_brackets.pop() != _BRACKETS.get(char):
            raise NotACallError(char)
    return text[:-1]
