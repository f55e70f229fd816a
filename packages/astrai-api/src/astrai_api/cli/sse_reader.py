"""Reads server-sent events of an answer, as they come."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

_DONE = b"[DONE]"


async def json_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of completion chunks, until its end or ``[DONE]``.

    Args:
        response: opened for streaming.
    """
    pending = b""
    async for piece in response.aiter_bytes():
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == _DONE:
                return
            event = json.loads(data)
            if isinstance(event, dict):
                yield event
