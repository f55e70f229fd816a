"""Structured output as all protocols ask for it."""

from collections.abc import Mapping
from typing import Any

from astrai_api.errors import bad_request
from astrai_engine.grammar import Grammar


def schema_grammar(schema: Any, param: str) -> Grammar:
    """Text that is JSON and matches a schema.

    Args:
        schema: the wire value.
        param: the field it is in.

    Raises:
        ApiError: 400; it is no schema.
        InvalidRequestError: it is too large or too deep.
    """
    if not isinstance(schema, Mapping | bool):
        raise bad_request(f"{param} needs a schema, which is a JSON object.", param=param)
    return Grammar.json_schema(schema, source=param)


def only_one(grammars: list[Grammar]) -> Grammar | None:
    """The one way in which a request asks for structured output, or None.

    Raises:
        ApiError: 400; there are several.
    """
    if len(grammars) > 1:
        first, second = (grammar.source for grammar in grammars[:2])
        raise bad_request(f"{first} and {second} can't be combined; send one.", param=second)
    return grammars[0] if grammars else None
