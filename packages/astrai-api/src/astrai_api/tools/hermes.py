"""Calls as Hermes and Qwen write them: JSON between tags, one pair for each call.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from collections.abc import Sequence

from astrai_api.answer_parts import AnswerParser
from astrai_api.tools.call_grammar import MAX_CALLS, quoted, required, wherever_begun
from astrai_api.tools.call_parser import CallParser
from astrai_api.tools.json_call import CallObject
from astrai_api.tools.reading import Calls, NotACall, Reading, read_literal, read_space
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar

_START = "<tool_call>"
_END = "</tool_call>"


class HermesFormat:
    """The format of Hermes and Qwen models, and of the default tool prompt."""

    name = "hermes"
    special_tokens = (_START, _END)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """A parser for one answer."""
        return CallParser(_read, [tool.name for tool in tools], anywhere=_START[0])

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        """One call, or several."""
        start = f'call ("\\n" call){{0,{MAX_CALLS - 1}}}' if parallel else "call"
        call = 'call: open "\\n" tool "\\n" close'
        tags = f"open: {quoted(_START)}", f"close: {quoted(_END)}"
        return required(tools, _body, start, call, *tags)

    def auto_grammar(self, tools: Sequence[Tool]) -> Grammar | None:
        """Any text, in which the tag begins a call."""
        call = 'call: begin "\\n" tool "\\n" close'
        tags = f"begin[lazy]: /(.|\\n)*/ {quoted(_START)}", f"close: {quoted(_END)}"
        return wherever_begun(tools, _body, "call* rest", "rest: /(.|\\n)*/", call, *tags)


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
    except NotACall as mistake:
        if not call.is_started:
            raise
        char = mistake.char  # behind the arguments, such as a brace that is missing
    yield from read_literal(_END, char)
