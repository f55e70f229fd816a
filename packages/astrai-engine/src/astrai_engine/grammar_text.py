"""Grammars in the notation of llguidance, the library that enforces them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher

from astrai_engine.grammar import JSON_LAYOUT, Grammar
from astrai_engine.reasoning_tags import ReasoningTags

TokenId = Callable[[str], int | None]
"""Gives the id of the token that stands for a text as a whole, or None."""

_TAG_RULE = re.compile(r'^(\w+: )("(?:[^"\\]|\\.)+")$', re.MULTILINE)


def definition(grammar: Grammar, prompt_end: str, token_id: TokenId) -> str:
    """The library's own form of a grammar.

    Args:
        grammar: what the text has to look like.
        prompt_end: the last characters of the prompt.
        token_id: the vocabulary's tokens for whole texts.
    """
    answer = _answer(grammar, token_id)
    if grammar.after is None or grammar.after.is_closed(prompt_end):
        return json.dumps({"grammars": [answer]})
    before = _reasoning(grammar.after, token_id, is_open=grammar.after.is_open(prompt_end))
    return json.dumps({"grammars": [{"lark_grammar": before}, {**answer, "name": "answer"}]})


def schemas_in(grammar: Grammar) -> Iterator[Any]:
    """The JSON schemas that are part of a grammar."""
    if grammar.kind == "json_schema":
        yield json.loads(grammar.text)
    elif grammar.kind == "lark":
        for rule in re.finditer("%json ", grammar.text):
            with suppress(ValueError):
                yield json.JSONDecoder().raw_decode(grammar.text, rule.end())[0]


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
    end = re.escape(tags.end).replace("/", r"\/")
    if token_id(tags.end) is None:
        thought = f"thought[lazy]: /(.|\\n)*{end}/"
    else:
        thought = f"thought: /(.|\\n)*/ end\nend: {json.dumps(tags.end)}"
    before = "thought GAP?" if is_open else "(open thought GAP?)?"
    rules = f"start: {before} @answer\nopen: {json.dumps(tags.start)}\nGAP: /\\n{{1,2}}/\n{thought}"
    return _with_tokens(rules, token_id)


def _with_tokens(rules: str, token_id: TokenId) -> str:
    """Rules that are one text replaced by the token that stands for it."""

    def replaced(rule: re.Match[str]) -> str:
        found = token_id(json.loads(rule[2]))
        return rule[0] if found is None else f"{rule[1]}<[{found}]>"

    return _TAG_RULE.sub(replaced, rules)
