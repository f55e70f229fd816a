import json

import pytest

from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import MAX_DEPTH, MAX_GRAMMAR_CHARS, Grammar, lark_json


def test_equal_grammars_are_equal():
    assert Grammar.regex("a+") == Grammar.regex("a+")
    assert Grammar.regex("a+") != Grammar.lark("a+")
    assert Grammar.json_object() == Grammar.json_schema({"type": "object"})


def test_a_schema_is_kept_as_json():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert json.loads(Grammar.json_schema(schema).text) == schema


def nested(depth):
    schema = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_size_and_depth_are_bounded():
    Grammar.json_schema(nested(MAX_DEPTH))
    Grammar.regex("a" * MAX_GRAMMAR_CHARS)
    for make in (
        lambda: Grammar.json_schema(nested(MAX_DEPTH + 1)),
        lambda: Grammar.json_schema(nested(100_000)),
        lambda: Grammar.json_schema({"anyOf": [{"anyOf": [nested(MAX_DEPTH)]}]}),
        lambda: Grammar.regex("a" * (MAX_GRAMMAR_CHARS + 1)),
    ):
        with pytest.raises(InvalidRequestError):
            make()


@pytest.mark.parametrize("texts", [[], ["a", ""]])
def test_a_choice_needs_something_to_choose_from(texts):
    with pytest.raises(InvalidRequestError, match="choice"):
        Grammar.choice(texts)


def test_a_grammar_is_known_by_its_source():
    assert Grammar.regex("a").source == "regex"
    with pytest.raises(InvalidRequestError, match="The tools has") as refusal:
        Grammar.lark("a" * (MAX_GRAMMAR_CHARS + 1), source="tools")
    assert refusal.value.param == "tools"


def test_json_in_a_grammar_is_on_one_line():
    notation, _, schema = lark_json({"type": "object", "title": "a\nb"}).partition(" ")
    assert notation == "%json"
    assert "\n" not in schema
    assert json.loads(schema)["x-guidance"]["whitespace_flexible"] is False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.json_schema({"enum": list(range(70_000))}, source="mine"), "too large"),
        (lambda: Grammar.json_schema(nested(100), source="mine"), "deeper"),
        (lambda: Grammar.regex("x" * 70_000, source="mine"), "70000 characters"),
        (lambda: Grammar.choice([], source="mine"), "not empty"),
    ],
)
def test_refusals_name_what_the_caller_knows(make, message):
    with pytest.raises(InvalidRequestError, match=f"^The mine .*{message}") as caught:
        make()
    assert caught.value.param == "mine"
