"""Messages through a pipe: their length in eight bytes, then themselves.

A reader that waits for one costs nothing and has no time limit, and it wakes up when the process
at the other end has died.
"""

import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def write_frame(pipe: IO[bytes], content: bytes | memoryview) -> None:
    """Send a message.

    Args:
        pipe: writable.
        content: its bytes.

    Raises:
        OSError: the reader is gone.
    """
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytearray:
    """Wait for a message.

    Args:
        pipe: readable, and buffered.

    Raises:
        EOFError: the writer is gone.
    """
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    return _read(pipe, length)


def _read(pipe: IO[bytes], length: int) -> bytearray:
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError("The process at the other end of the pipe is gone.")
    return bytearray(content)
