"""What a generation's text has to look like: a schema, a pattern, a choice or a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astrai_engine.errors import InvalidRequestError

MAX_GRAMMAR_CHARS = 64 * 1024
"""Longest grammar that is compiled."""

MAX_DEPTH = 64
"""Deepest nesting of a schema that is compiled."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the generated text, not compiled yet.

    Attributes:
        kind: how ``text`` is written.
        text: a JSON schema, a regular expression, a JSON list of texts, or a Lark grammar.
    """

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequestError(
                f"The {self.kind} has {len(self.text)} characters; at most {MAX_GRAMMAR_CHARS} "
                "are taken.",
                param=self.kind,
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> "Grammar":
        """Text that is JSON and matches a schema.

        Raises:
            InvalidRequestError: the schema is too large or too deep.
        """
        if _depth(schema) > MAX_DEPTH:
            raise InvalidRequestError(
                f"The json_schema is nested deeper than {MAX_DEPTH} levels.", param="json_schema"
            )
        return cls("json_schema", json.dumps(schema))

    @classmethod
    def json_object(cls) -> "Grammar":
        """Text that is any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Text that matches a regular expression as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """One of several texts.

        Raises:
            InvalidRequestError: there is none, or an empty one.
        """
        if not texts or not all(texts):
            raise InvalidRequestError("A choice needs texts that are not empty.", param="choice")
        return cls("choice", json.dumps(list(texts)))

    @classmethod
    def lark(cls, grammar: str) -> "Grammar":
        """Text that a context-free grammar in Lark's notation derives from ``start``."""
        return cls("lark", grammar)


def _depth(value: Any) -> int:
    """How deeply a JSON value is nested, counted without recursion."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, depth = todo.pop()
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            break
        if isinstance(item, Mapping):
            todo += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, list | tuple):
            todo += [(child, depth + 1) for child in item]
    return deepest
