"""Grammars in the notation of llguidance, the library that enforces them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher

from astrai_engine.grammar import ANY_TEXT, JSON_LAYOUT, Grammar
from astrai_engine.reasoning_tags import ReasoningTags

TokenId = Callable[[str], int | None]
"""Gives the id of the token that stands for a text as a whole, or None."""

_TAG_RULE = re.compile(
    rf"^(?P<name>\w+)(?::|\[lazy\]:(?P<text> (?:{re.escape(ANY_TEXT)}|[A-Z_]+)))"
    r' (?P<tag>"(?:[^"\\]|\\.)+")$',
    re.MULTILINE,
)
"""A rule that is a tag, or some text up to the first one."""


def definition(grammar: Grammar, prompt_end: str, token_id: TokenId) -> str:
    """The library's own form of a grammar.

    Args:
        grammar: what the text has to look like.
        prompt_end: the last characters of the prompt.
        token_id: the vocabulary's tokens for whole texts.
    """
    grammars = _alternatives(grammar, token_id)
    if grammar.after is not None and not grammar.after.is_closed(prompt_end):
        before = _reasoning(grammar.after, token_id, is_open=grammar.after.is_open(prompt_end))
        grammars = [{"lark_grammar": before}, {**grammars[0], "name": "answer"}, *grammars[1:]]
    return json.dumps({"grammars": grammars})


def schemas_in(grammar: Grammar) -> Iterator[Any]:
    """The JSON schemas that are part of a grammar."""
    if grammar.kind == "json_schema":
        yield json.loads(grammar.text)
    elif grammar.kind == "lark":
        for rule in re.finditer("%json ", grammar.text):
            with suppress(ValueError):
                yield json.JSONDecoder().raw_decode(grammar.text, rule.end())[0]


def _alternatives(grammar: Grammar, token_id: TokenId) -> list[dict[str, Any]]:
    """What the text has to look like, and behind it what that refers to."""
    first = _answer(grammar, token_id)
    if grammar.otherwise is None:
        return [first]
    second = _answer(grammar.otherwise, token_id)
    either = {"lark_grammar": "start: @first | @second"}
    return [either, {**first, "name": "first"}, {**second, "name": "second"}]


def _answer(grammar: Grammar, token_id: TokenId) -> dict[str, Any]:
    match grammar.kind:
        case "json_schema":
            whole = LLMatcher.grammar_from_json_schema(grammar.text, overrides=JSON_LAYOUT)
        case "regex":
            whole = LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            texts = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
            return {"lark_grammar": f"start: {texts}"}
        case "lark":
            return {"lark_grammar": _with_tokens(grammar.text, token_id)}
    answer: dict[str, Any] = json.loads(whole)["grammars"][0]
    return answer


def _reasoning(tags: ReasoningTags, token_id: TokenId, *, is_open: bool) -> str:
    """Rules for reasoning, required where it is open, and then the answer."""
    before = "thought GAP?" if is_open else "(open thought GAP?)?"
    rules = (
        f"start: {before} @answer",
        f"open: {json.dumps(tags.start)}",
        f"thought[lazy]: {ANY_TEXT} {json.dumps(tags.end)}",
        "GAP: /\\n{1,2}/",
    )
    return _with_tokens("\n".join(rules), token_id)


def _with_tokens(rules: str, token_id: TokenId) -> str:
    """Rules whose tags are tokens where the vocabulary has them."""

    def replaced(rule: re.Match[str]) -> str:
        found = token_id(json.loads(rule["tag"]))
        if found is None:
            return rule[0]
        return f"{rule['name']}:{rule['text'] or ''} <[{found}]>"

    return _TAG_RULE.sub(replaced, rules)
