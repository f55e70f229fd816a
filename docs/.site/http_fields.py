"""The page of all HTTP fields, from the OpenAPI document that the server has."""

from collections.abc import Iterator
from typing import Any

from astrai_api.application import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine

_INTRODUCTION = """# HTTP fields

Every path of the server with the fields of its body, made from the OpenAPI document that a server
has at `/openapi.json`. [HTTP API](http-api.md) says what they mean.
"""


def http_fields_page() -> str:
    """The page as Markdown."""
    document = create_app(engine=FakeEngine(), settings=Settings()).openapi()
    sections = [
        _section(document, path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return "\n".join([_INTRODUCTION, *sections])


def _section(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [f"## {method.upper()} {path}", "", operation.get("summary", ""), ""]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields = list(_fields(document, body.get("schema", {})))
    if fields:
        lines += ["| field | type | default |", "|---|---|---|", *fields, ""]
    statuses = ", ".join(f"`{status}`" for status in sorted(operation["responses"]))
    return "\n".join([*lines, f"Answers with {statuses}.", ""])


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    schema = _resolved(document, schema)
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else _literal(field.get("default"))
        yield f"| `{name}` | {_type(document, field)} | {default} |"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A short name of a type, with its bounds."""
    schema = _resolved(document, schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            names = dict.fromkeys(_type(document, option) for option in schema[key])
            return " or ".join(names)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    bounds = [
        f"{word} {_number(schema[key])}"
        for key, word in (
            ("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"),
            ("maxLength", "up to"), ("minItems", "at least"), ("maxItems", "at most"),
        )
        if key in schema
    ]  # fmt: skip
    return " ".join(
        [str(schema.get("title" if "properties" in schema else "type", "any")), *bounds]
    )


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)


def _literal(value: Any) -> str:
    return "" if value in (None, {}, []) else f"`{value!r}`"
