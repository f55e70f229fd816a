"""Server-sent events: strict JSON and the frames of a stream."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"
"""The nameless last event of every stream."""

COMMENT_PING = b": ping\n\n"
"""A comment: clients ignore it, and nothing between takes a silent stream for a dead one."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

# Only ASCII leaves the server: some clients split lines at U+2028, U+2029 and U+0085 too.
_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def encode_json(value: Any) -> bytes:
    """Strict JSON in ASCII.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    return _encoder.encode(value).encode("ascii")


def encode_event(data: Any, name: str | None = None) -> bytes:
    """One event: its name if it has one, its JSON data, and the blank line that ends it."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return b"%sdata: %s\n\n" % (head, encode_json(data))
