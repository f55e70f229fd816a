"""Calls as Hermes and Qwen write them: JSON between tags, one pair for each call.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from collections.abc import Sequence

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.call_grammar import (
    auto_schemas,
    calls_grammar,
    in_a_row,
    quoted,
    required_schemas,
    tool_rules,
)
from astrai_api.tools.call_parser import CallParser
from astrai_api.tools.json_call import CallObject
from astrai_api.tools.reading import Calls, NotACallError, Reading, read_literal, read_space
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import ANY_TEXT, Grammar

_START = "<tool_call>"
_END = "</tool_call>"
_GAP = "\n"


class HermesFormat:
    """The format of Hermes and Qwen models, and of the default tool prompt."""

    name = "hermes"
    special_tokens = (_START, _END)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer."""
        return CallParser(_read, [tool.name for tool in tools], anywhere=_START[0])

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """One call, or several."""
        return calls_grammar(
            f"start: {in_a_row('call', _GAP, parallel=parallel)}",
            f"call: open {quoted(_GAP)} tool {quoted(_GAP)} close",
            f"open: {quoted(_START)}",
            f"close: {quoted(_END)}",
            *tool_rules(tools, required_schemas(tools), _body),
        )

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, in which the tag begins a call."""
        schemas = auto_schemas(tools)
        if schemas is None:
            return None
        return calls_grammar(
            "start: call* rest",
            f"call: until {quoted(_GAP)} tool {quoted(_GAP)} close",
            f"until[lazy]: {ANY_TEXT} {quoted(_START)}",
            f"close: {quoted(_END)}",
            f"rest: {ANY_TEXT}",
            *tool_rules(tools, schemas, _body),
        )


def _body(name: str, arguments: str) -> str:
    begin = f'{{"name": {quoted(name)}, "arguments": '
    return f'{quoted(begin)} {arguments} "}}"'


def _read(calls: Calls) -> Reading[None]:
    yield from read_literal(_START, (yield))
    calls.is_open = True
    call = CallObject(calls, _END)
    first = yield from read_space()
    try:
        if not (yield from call.read(first)):
            return
        char = yield from read_space()
    except NotACallError as mistake:
        if not call.is_started:
            raise
        char = mistake.char  # behind the arguments, such as a brace that is missing
    yield from read_literal(_END, char)
