import io

import pytest

from astrai_engine.parallel.frames import read_frame, write_frame


def test_messages_come_as_they_were_sent():
    pipe = io.BytesIO()
    messages = [b"", b"abc", memoryview(bytes(100_000))]
    for message in messages:
        write_frame(pipe, message)
    pipe.seek(0)
    assert [read_frame(pipe) for _ in messages] == messages


@pytest.mark.parametrize("content", [b"", b"\x05\0\0", b"\x05\0\0\0\0\0\0\0ab"])
def test_a_writer_that_is_gone_is_told(content):
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(content))
