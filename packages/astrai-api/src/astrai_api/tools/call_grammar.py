"""Grammars of calls: the rules that all formats share, in Lark's notation.

The layout of a call is fixed, down to its spaces: what a model is free to choose is which tool it
calls, and with what.
"""

import json
from collections.abc import Callable, Sequence

from astrai_api.tools.arguments_schema import arguments_schema
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar, lark_json

MAX_CALLS = 16
"""Most calls in an answer that consists of calls."""

Body = Callable[[str, str], str]
"""Gives the rule of a call, from a tool's name and the notation of its arguments."""


def quoted(text: str) -> str:
    """A fixed text."""
    return json.dumps(text)


def required(tools: Sequence[Tool], body: Body, start: str, *rules: str) -> Grammar:
    """Calls of any of some tools.

    Args:
        tools: at least one; all arguments match their schema.
        body: the rule of a call.
        start: the start rule, made of ``tool``.
        *rules: those it is made of besides.
    """
    arguments = [lark_json(arguments_schema(tool)) for tool in tools]
    return _grammar(tools, arguments, body, start, *rules)


def wherever_begun(tools: Sequence[Tool], body: Body, start: str, *rules: str) -> Grammar | None:
    """Text in which what begins as a call of any of some tools goes on as one.

    Args:
        tools: those on offer; only the arguments of strict ones match their schema.
        body: the rule of a call.
        start: the start rule, made of ``tool``.
        *rules: those it is made of besides.

    Returns:
        None when no tool is strict.
    """
    if not any(tool.strict for tool in tools):
        return None
    arguments = [
        lark_json(arguments_schema(tool) if tool.strict else {"type": "object"}) for tool in tools
    ]
    return _grammar(tools, arguments, body, start, *rules)


def _grammar(
    tools: Sequence[Tool], arguments: Sequence[str], body: Body, start: str, *rules: str
) -> Grammar:
    names = [f"tool_{number}" for number in range(len(tools))]
    bodies = [body(tool.name, text) for tool, text in zip(tools, arguments, strict=True)]
    calls = [f"{name}: {text}" for name, text in zip(names, bodies, strict=True)]
    lines = [f"start: {start}", *rules, f"tool: {' | '.join(names)}", *calls]
    return Grammar.lark("\n".join(lines), source="tools")
