r"""Calls as Llama 3 writes them: bare JSON, sometimes behind a tag.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Several are separated by semicolons. Without the tag a call begins a line.
"""

from collections.abc import Sequence

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.call_grammar import (
    Schemas,
    auto_schemas,
    calls_grammar,
    in_a_row,
    quoted,
    required_schemas,
    text_rules,
    tool_rules,
)
from astrai_api.tools.call_parser import CallParser
from astrai_api.tools.json_call import CallObject
from astrai_api.tools.reading import Calls, NotACallError, Reading, read_literal, read_space
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar

_TAG = "<|python_tag|>"
_SEPARATOR = "; "
_BEGIN = '{"name": '

JSON_BEGIN = r'\{\s*"name"\s*:'
"""Regular expression of how a call as JSON begins."""

JSON_OTHERWISE = r'\{\s*"(type|id|parameters|arguments)"'
"""Regular expression of how it may begin too, if nobody sees to it."""


class Llama3JsonFormat:
    """The format of Llama 3.1 and later."""

    name = "llama3_json"
    special_tokens = (_TAG,)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer."""
        names = [tool.name for tool in tools]
        return CallParser(_read, names, anywhere=_TAG[0], on_new_lines="{")

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """One call, or several."""
        return json_grammar(tools, required_schemas(tools), parallel=parallel)

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, in which the tag, or a line that begins like a call, begins one."""
        schemas = auto_schemas(tools)
        return None if schemas is None else json_auto_grammar(tools, schemas, _TAG)


def json_grammar(tools: Sequence[Tool], schemas: Schemas, *, parallel: bool) -> Grammar:
    """Calls as JSON, and nothing else."""
    return calls_grammar(
        f"start: {in_a_row('call', _SEPARATOR, parallel=parallel)}",
        f"call: {quoted(_BEGIN)} tool",
        *tool_rules(tools, schemas, _body),
    )


def json_auto_grammar(
    tools: Sequence[Tool], schemas: Schemas, tag: str, *, forbidden: str = ""
) -> Grammar:
    """Any text with calls as JSON.

    Args:
        tools: those on offer.
        schemas: of their arguments.
        tag: begins a call anywhere.
        forbidden: regular expression of what no line may begin with.
    """
    others = "|".join(filter(None, (JSON_OTHERWISE, forbidden)))
    return calls_grammar(
        "start: call* rest",
        f'call: (line " "? | tag {quoted(_BEGIN)}) tool',
        f"tag[lazy]: TEXT {quoted(tag)}",
        *text_rules({"line": JSON_BEGIN}, forbidden=others),
        *tool_rules(tools, schemas, _body),
    )


def _body(name: str, arguments: str) -> str:
    """A call behind the key of its name."""
    begin = f'{quoted(name)}, "parameters": '
    return f'{quoted(begin)} {arguments} "}}"'


def read_json_calls(calls: Calls, first: str) -> Reading[str]:
    """Calls as JSON objects with semicolons between them; gives the character behind them."""
    yield from CallObject(calls).read(first)
    while (char := (yield from read_space())) == ";":
        first = yield from read_space()
        yield from CallObject(calls).read(first)
    return char


def _read(calls: Calls) -> Reading[None]:
    first = yield
    if first == _TAG[0]:
        yield from read_literal(_TAG, first)
        calls.is_open = True
        first = yield from read_space()
    behind = yield from read_json_calls(calls, first)
    raise NotACallError(behind)
