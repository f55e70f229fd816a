"""Request bodies: JSON as the standard has it, an object at the top, and bounded in depth.

Python's parser accepts more than JSON (NaN, lone surrogates) and FastAPI answers a syntax error
with 422; both differ from what clients of the real services see.
"""

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from astrai_api.errors import bad_request

MAX_DEPTH = 128
"""Deepest nesting accepted; tool schemas of real clients stay below 30."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a request body.

    Raises:
        ApiError: 400, with what is wrong: not UTF-8, not JSON, not an object, a number outside
            the range of floats, an unpaired surrogate, or nesting deeper than ``MAX_DEPTH``.
    """
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
        if b"\\ud" in raw or b"\\uD" in raw:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("The request body is not valid UTF-8.") from None
    except UnicodeEncodeError:
        raise bad_request("The request body holds an unpaired surrogate escape.") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.") from None
    except ValueError as error:
        raise bad_request(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _is_too_deep(value):
        raise bad_request(f"The request body is nested more than {MAX_DEPTH} levels deep.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large a number")
    return number


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return False
    return True


def _containers(parent: Any) -> list[Any]:
    children = parent.values() if isinstance(parent, dict) else parent
    return [child for child in children if isinstance(child, dict | list)]


class _ParsedRequest(Request):
    """A request whose body is parsed already, whatever content type the client named."""

    def __init__(self, request: Request, body: dict[str, Any]) -> None:
        headers = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._parsed = body

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._parsed


class StrictJSONRoute(APIRoute):
    """A route whose body goes through :func:`parse_object` before FastAPI validates it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler with the strict parser."""
        handler = super().get_route_handler()

        async def parse_and_handle(request: Request) -> Response:
            body = parse_object(await request.body())
            return await handler(_ParsedRequest(request, body))

        return parse_and_handle
