"""What is enforced of a tool's parameters."""

import pytest

from astrai_api.tools.arguments_schema import arguments_schema
from astrai_api.tools.tool import Tool
from astrai_engine.errors import InvalidRequestError

INNER = {"type": "object", "properties": {"x": {}}}


def enforced(schema):
    return arguments_schema(Tool("f", parameters=schema))


def test_a_tool_without_parameters_takes_none():
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments_schema(Tool("f")) == nothing


def test_listed_properties_are_all_there_are():
    schema = {"properties": {"a": INNER, "b": {"type": "array", "items": INNER}, "c": True}}
    closed = {**INNER, "additionalProperties": False}
    assert enforced(schema) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"a": closed, "b": {"type": "array", "items": closed}, "c": True},
    }
    assert "additionalProperties" not in schema["properties"]["a"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["b"]}]},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
    ],
)
def test_others_stay_possible_where_the_schema_may_want_them(schema):
    assert enforced(schema) == schema


@pytest.mark.parametrize("kind", ["array", ["object", "null"]])
def test_arguments_are_an_object(kind):
    with pytest.raises(InvalidRequestError, match=r"parameters of f must be an object: #/type"):
        enforced({"type": kind})


def test_a_deep_schema_is_refused():
    schema: dict = {"type": "object"}
    for _ in range(70):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidRequestError, match="tools is nested deeper") as refusal:
        enforced(schema)
    assert refusal.value.param == "tools"


def test_a_tool_as_templates_expect_it():
    assert Tool("f").as_openai() == {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    }
    assert Tool("f", "does").as_openai()["function"]["description"] == "does"
