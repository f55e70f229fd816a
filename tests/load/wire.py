"""HTTP/1.1 on a socket of one's own, with all the ways to misbehave that libraries prevent."""

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass

_SILENT_CLOSE = struct.pack("ii", 1, 0)
"""``SO_LINGER`` of a socket whose end is a reset, as when a client's machine goes away."""


@dataclass(frozen=True)
class Reply:
    """A whole answer.

    Attributes:
        first_event: seconds from the request to the first event of a stream that is no ping; None
            if there was none.
    """

    status: int
    headers: dict
    body: bytes
    first_event: float | None = None


class IncompleteReplyError(Exception):
    """The connection ended before the answer did."""


def encode(method, path, body=None):
    """The bytes of a request."""
    content = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def connected(port, *, receive_buffer=None, resets=False):
    """A connection as a reader and a writer; it is closed on leaving.

    Args:
        receive_buffer: bytes that may wait unread, so that a slow reader makes the server wait.
        resets: end it by a reset.
    """
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if resets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SILENT_CLOSE)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    limit = receive_buffer or 2**16
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(port, method, path, body=None):
    """Send a request and read its answer.

    Raises:
        IncompleteReplyError: there was no end of it.
        OSError: the connection could not be made, or broke.
    """
    async with connected(port) as (reader, writer):
        return await exchange(reader, writer, encode(method, path, body))


async def exchange(reader, writer, request, *, size=2**16, pause=None):
    """Send a request on a connection and read the answer to its end.

    Args:
        size: the most bytes to read at once.
        pause: gives the seconds to wait after each read.
    """
    clock = asyncio.get_running_loop().time
    start = clock()
    writer.write(request)
    received, first_event = bytearray(), None
    while data := await reader.read(size):
        received += data
        if first_event is None and b"data:" in data and b"ping" not in data:
            first_event = clock() - start
        if pause is not None:
            await asyncio.sleep(pause())
    return parse(bytes(received), first_event)


def parse(received, first_event=None):
    """The answer in what a connection brought.

    Raises:
        IncompleteReplyError: some of it is missing.
    """
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        raise IncompleteReplyError(f"no head in {received[:100]!r}")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if headers.get("transfer-encoding") == "chunked":
        body = _without_chunks(body)
    elif len(body) != int(headers["content-length"]):
        raise IncompleteReplyError(f"{len(body)} of {headers['content-length']} bytes")
    return Reply(int(status.split()[1]), headers, body, first_event)


def _without_chunks(body):
    content, at = bytearray(), 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end], 16)
        if size == 0:
            return bytes(content)
        content += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    raise IncompleteReplyError(f"no last chunk after {bytes(content[-100:])!r}")
