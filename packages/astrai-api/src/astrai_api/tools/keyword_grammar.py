"""Grammars of calls with keywords, ``f(x=1, y="a")``, in Lark's notation.

Values are JSON: that is what schemas describe, and the parser takes it for a literal.
"""

import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astrai_api.tools.call_grammar import ANY_OBJECT, Schemas, quoted
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import lark_json

_DEFINITIONS = ("$defs", "definitions")
_DESCRIBED = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", *_DEFINITIONS),
        *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
    )
)


def has_keywords(schema: Mapping[str, Any]) -> bool:
    """Whether all that a schema demands of an object can be said of its keywords one by one."""
    properties = schema.get("properties", {})
    return (
        _DESCRIBED.issuperset(schema)
        and schema.get("additionalProperties") is False
        and set(schema.get("required", ())) <= properties.keys()
        and all(map(_is_keyword, properties))
        and all(isinstance(value, Mapping) for value in properties.values())
    )


def _is_keyword(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def keyword_rules(tools: Sequence[Tool], schemas: Schemas) -> list[str]:
    """The rule ``tool``, a call of any of some tools, and those it is made of.

    Keywords for ``ANY_OBJECT`` are not all valid: the same may come twice.

    What follows the opening parenthesis of tool 3 is the rule ``rest_3``.
    """
    rules = [f"tool: {' | '.join(f'tool_{number}' for number in range(len(tools)))}"]
    for number, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        keywords = _any_keywords if schema == ANY_OBJECT else _keywords
        rules += [
            f"tool_{number}: {quoted(tool.name + '(')} rest_{number}",
            f'rest_{number}: first_{number}_0 ")"',
            *keywords(number, schema),
        ]
    return rules


def _keywords(number: int, schema: Mapping[str, Any]) -> Iterator[str]:
    """Keywords in the order of the schema; those not required may be left out.

    ``first_3_1`` is all from the second one on where none has come yet, ``more_3_1`` where one
    has.
    """
    required, properties = schema.get("required", ()), schema.get("properties", {})
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    for place, (name, value) in enumerate(properties.items()):
        this, following = f"{number}_{place}", f"{number}_{place + 1}"
        yield f"keyword_{this}: {quoted(name + '=')} {lark_json({**shared, **value})}"
        first, more = f"keyword_{this} more_{following}", f'", " keyword_{this} more_{following}'
        yield f"first_{this}: {first}" + ("" if name in required else f" | first_{following}")
        yield f"more_{this}: {more}" + ("" if name in required else f" | more_{following}")
    yield f'first_{number}_{len(properties)}: ""'
    yield f'more_{number}_{len(properties)}: ""'


def _any_keywords(number: int, _schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'first_{number}_0: (keyword_{number} (", " keyword_{number})*)?'
    yield f'keyword_{number}: /[A-Za-z_][A-Za-z0-9_]*/ "=" {lark_json({})}'
