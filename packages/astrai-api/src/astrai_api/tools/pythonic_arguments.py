"""Arguments written as in a Python call, as JSON."""

import ast
import json
import warnings
from typing import NoReturn

_JSON_NAMES = {"true": True, "false": False, "null": None}


def arguments_as_json(text: str) -> str | None:
    """The JSON object of keyword arguments.

    Args:
        text: what stands between the parentheses, such as ``city="Paris", days=[1, 2]``. Values
            are literals of Python or of JSON; those that are JSON stay as they are.

    Returns:
        None when it is anything else than keywords with literals.
    """
    source = f"f({text}\n)"
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        items = {_key(word): _value(word.value, source) for word in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    if len(items) < len(call.keywords):
        return None
    return "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}"


class _JsonNames(ast.NodeTransformer):
    """Reads JSON's names of values as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def _key(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError("**values are no keywords")
    return json.dumps(word.arg, ensure_ascii=False)


def _value(node: ast.expr, source: str) -> str:
    """JSON of a literal; half of a surrogate pair stays an escape."""
    written = ast.get_source_segment(source, node) or ""
    try:
        json.loads(written, parse_constant=_refuse)
    except ValueError:
        value = ast.literal_eval(_JsonNames().visit(node))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text.encode(errors="backslashreplace").decode()
    return written


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
