"""Server-sent events: strict JSON and the frames of a stream."""

import json
import uuid
from typing import Any

from starlette.responses import Response

DONE = b"data: [DONE]\n\n"
"""The nameless last event of every stream."""

COMMENT_PING = b": ping\n\n"
"""A comment: clients ignore it, and nothing between takes a silent stream for a dead one."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

HOLE = uuid.uuid4().hex
"""Marks a hole in an :class:`EventTemplate`: nothing a client sends can be equal to it."""

# Only ASCII leaves the server: some clients split lines at U+2028, U+2029 and U+0085 too.
_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def encode_json(value: Any) -> bytes:
    """Strict JSON in ASCII.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    # The encoder gets ready anew for whatever is no string, and streams are full of these.
    if type(value) is int:
        return b"%d" % value
    if value == []:
        return b"[]"
    return _encoder.encode(value).encode("ascii")


class EventTemplate:
    """An event that is sent many times and differs in some values only.

    What stays the same is encoded once: a stream has thousands of these.

    Args:
        data: as for :func:`encode_event`, with :data:`HOLE` where a value differs.
        name: of the event.
    """

    def __init__(self, data: Any, name: str | None = None) -> None:
        self._parts = encode_event(data, name).split(encode_json(HOLE))

    def fill(self, *values: Any) -> bytes:
        """The event with a value for every hole, in the order they are written."""
        filled = [self._parts[0]]
        for value, part in zip(values, self._parts[1:], strict=True):
            filled += (encode_json(value), part)
        return b"".join(filled)


def json_response(body: Any) -> Response:
    """A successful answer that is strict JSON."""
    return Response(encode_json(body), media_type="application/json")


def encode_event(data: Any, name: str | None = None) -> bytes:
    """One event: its name if it has one, its JSON data, and the blank line that ends it."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return b"%sdata: %s\n\n" % (head, encode_json(data))
