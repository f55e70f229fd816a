"""What a generation's text has to look like: a schema, a pattern, a choice or a grammar."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from astrai_engine.errors import InvalidRequestError
from astrai_engine.reasoning_tags import ReasoningTags

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 64 * 1024
"""Longest grammar that is compiled."""

MAX_DEPTH = 64
"""Deepest nesting of a schema that is compiled."""

JSON_LAYOUT: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON on one line: where white space is free, a small model may write it without end."""

ANY_TEXT = r"/(.|\n)*/"
"""Lark's notation for any text."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the generated text, not compiled yet.

    Attributes:
        kind: how ``text`` is written.
        text: a JSON schema, a regular expression, a JSON list of texts, or a Lark grammar.
        source: what the caller knows it by, for errors; the kind unless given.
        after: the tags of reasoning that may come before the text; None when nothing may. Where
            the prompt stops inside the reasoning, the rest of it has to.
        otherwise: what the text may look like instead; None leaves no choice.
        closes: near ``max_tokens`` the text is brought to its end rather than cut; for JSON, and
            calls made of it. Reasoning that comes first leaves no say in that.
    """

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str
    source: str = ""
    after: ReasoningTags | None = None
    otherwise: "Grammar | None" = None
    closes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", self.source or self.kind)
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequestError(
                f"The {self.source} has {len(self.text)} characters; at most {MAX_GRAMMAR_CHARS} "
                "are taken.",
                param=self.source,
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool, *, source: str = "") -> "Grammar":
        """Text that is JSON and matches a schema.

        Args:
            schema: the schema.
            source: what the caller knows it by, for errors.

        Raises:
            InvalidRequestError: the schema is too large or too deep.
        """
        check_depth(schema, source or "json_schema")
        return cls("json_schema", json.dumps(schema), source, closes=True)

    @classmethod
    def json_object(cls, *, source: str = "") -> "Grammar":
        """Text that is any JSON object."""
        return cls.json_schema({"type": "object"}, source=source)

    @classmethod
    def regex(cls, pattern: str, *, source: str = "") -> "Grammar":
        """Text that matches a regular expression as a whole."""
        return cls("regex", pattern, source)

    @classmethod
    def choice(cls, texts: Sequence[str], *, source: str = "") -> "Grammar":
        """One of several texts.

        Raises:
            InvalidRequestError: there is none, or an empty one.
        """
        if not texts or not all(texts):
            raise InvalidRequestError(
                f"The {source or 'choice'} needs texts that are not empty.",
                param=source or "choice",
            )
        return cls("choice", json.dumps(list(texts)), source)

    @classmethod
    def lark(cls, grammar: str, *, source: str = "") -> "Grammar":
        r"""Text that a context-free grammar in Lark's notation derives from ``start``.

        A rule that is one quoted text is the token with this text, where the vocabulary has one
        and the request's text shows it: ``tag: "<tool_call>"``. So is the end of a rule for
        text up to it: ``until[lazy]: TEXT "<tool_call>"``, with a terminal or ``ANY_TEXT``.

        Args:
            grammar: the rules, one a line.
            source: what the caller knows it by, for errors.
        """
        return cls("lark", grammar, source)


def lark_json(schema: Mapping[str, Any]) -> str:
    """Lark's notation for JSON that matches a schema, on one line."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_LAYOUT})


def check_depth(schema: Any, source: str) -> None:
    """Refuse what is nested too deep, or has more values than a grammar may have characters.

    Raises:
        InvalidRequestError: it is; the message names the source.
    """
    level, num_values = [schema], 0
    for _ in range(MAX_DEPTH):
        num_values += len(level)
        if num_values > MAX_GRAMMAR_CHARS:
            raise InvalidRequestError(
                f"The {source} is too large: at most {MAX_GRAMMAR_CHARS} characters are taken.",
                param=source,
            )
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise InvalidRequestError(
        f"The {source} is nested deeper than {MAX_DEPTH} levels.", param=source
    )


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
