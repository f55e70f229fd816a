"""What the arguments of a tool have to look like when they are enforced."""

from collections.abc import Mapping
from typing import Any

from astrai_api.tools.tool import Tool
from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import check_depth

_COMBINING = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties")
)


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object.

    Where a schema lists properties and does not speak of others there are no others: they would
    be valid, but a small model might not stop adding them.

    Raises:
        InvalidRequestError: the schema is too deep, or demands something else than an object.
    """
    check_depth(tool.parameters, "tools")
    kind = tool.parameters.get("type", "object")
    if kind != "object":
        raise InvalidRequestError(
            f"The tools can't be enforced: the parameters of {tool.name} must be an object: "
            f"#/type is {kind!r}.",
            param="tools",
        )
    return _closed({**tool.parameters, "type": "object"})


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    closed = dict(schema)
    if not _COMBINING.isdisjoint(schema):
        return closed
    items, properties = schema.get("items"), schema.get("properties")
    if isinstance(items, Mapping):
        closed["items"] = _closed(items)
    if isinstance(properties, Mapping) and set(schema.get("required", ())) <= properties.keys():
        closed["additionalProperties"] = False
        closed["properties"] = {
            key: _closed(part) if isinstance(part, Mapping) else part
            for key, part in properties.items()
        }
    return closed
