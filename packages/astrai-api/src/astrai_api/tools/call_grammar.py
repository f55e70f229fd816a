r"""Grammars of calls: what all formats share, in Lark's notation.

The layout of a call is fixed, down to its spaces: what a model is free to choose is which tool it
calls, and with what.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from astrai_api.tools.arguments_schema import arguments_schema
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import ANY_TEXT, Grammar, lark_json

MAX_CALLS = 8
"""Most calls in an answer that consists of calls."""

Schemas: TypeAlias = Sequence[Mapping[str, Any]]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of arguments that nothing is demanded of."""

Body: TypeAlias = Callable[[str, str], str]
"""Gives the rule of a call, from a tool's name and the notation of its arguments."""


def quoted(text: str) -> str:
    """A fixed text."""
    return json.dumps(text)


def required_schemas(tools: Sequence[Tool]) -> Schemas:
    """What the arguments of each tool must match in a call that has to be made.

    Raises:
        InvalidRequestError: a schema is too deep, or demands something else than an object.
    """
    return [arguments_schema(tool) for tool in tools]


def auto_schemas(tools: Sequence[Tool]) -> Schemas | None:
    """What the arguments of each tool must match in a call that a model makes by itself.

    Returns:
        None when no tool is strict; the others take any object.

    Raises:
        InvalidRequestError: a schema is too deep, or demands something else than an object.
    """
    if not any(tool.strict for tool in tools):
        return None
    return [arguments_schema(tool) if tool.strict else ANY_OBJECT for tool in tools]


def tool_rules(tools: Sequence[Tool], schemas: Schemas, body: Body) -> list[str]:
    """The rule ``tool``, a call of any of some tools, and those it is made of."""
    names = [f"tool_{number}" for number in range(len(tools))]
    calls = [
        f"{name}: {body(tool.name, lark_json(schema))}"
        for name, tool, schema in zip(names, tools, schemas, strict=True)
    ]
    return [f"tool: {' | '.join(names)}", *calls]


def in_a_row(rule: str, separator: str, *, parallel: bool) -> str:
    """A rule, or several of it with a text between them."""
    return f"{rule} ({quoted(separator)} {rule}){{0,{MAX_CALLS - 1}}}" if parallel else rule


def text_rules(beginnings: Mapping[str, str], *, forbidden: str) -> list[str]:
    """Rules for text in which a line may begin like a call, and then has to go on as one.

    Args:
        beginnings: regular expressions of such beginnings, by the rule for any text up to one.
        forbidden: regular expression of what no line begins with.

    Returns:
        The rules of ``beginnings``, and ``rest`` for text behind the last call.
    """
    line = r"((.|\n)*\n)?\s*"
    return [
        *(f"{name}[lazy]: LINE_START /{pattern}/" for name, pattern in beginnings.items()),
        f"LINE_START: TEXT & /{line}/",
        rf"TEXT: {ANY_TEXT} & ~/{line}({forbidden})(.|\n)*/",
        "rest: TEXT",
    ]


def calls_grammar(*rules: str) -> Grammar:
    """The grammar of some rules.

    Raises:
        InvalidRequestError: they are too long.
    """
    return Grammar.lark("\n".join(rules), source="tools")
