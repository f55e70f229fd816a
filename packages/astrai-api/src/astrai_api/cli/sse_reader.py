"""Reads server-sent events of an answer, as they come."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from astrai_api.cli.exits import CommandError

_DONE = b"[DONE]"


async def json_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of completion chunks, until its end or ``[DONE]``.

    Args:
        response: opened for streaming.

    Raises:
        CommandError: an event holds something else.
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
            yield _event(data)


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise CommandError(f"An event of the stream is no JSON object: {data[:60]!r}")
    return event
