import httpx
import pytest

from astrai_api.cli.exits import CommandError
from astrai_api.cli.sse_reader import json_events


async def events_of(*pieces):
    class Stream(httpx.AsyncByteStream):
        async def __aiter__(self):
            for piece in pieces:
                yield piece

    return [event async for event in json_events(httpx.Response(200, stream=Stream()))]


STREAM = (
    b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata:{"b": "\xc3\xa9"}\r\n\r\n'
    b'data: [DONE]\n\ndata: {"c": 3}\n\n'
)


async def test_events_end_with_done():
    assert await events_of(STREAM) == [{"a": 1}, {"b": "é"}]


@pytest.mark.parametrize("cut", range(1, len(STREAM), 7))
async def test_it_does_not_matter_where_a_stream_is_cut(cut):
    assert await events_of(STREAM[:cut], STREAM[cut:]) == [{"a": 1}, {"b": "é"}]


async def test_a_stream_may_end_without_done():
    assert await events_of(b'data: {"a": 1}\n\n') == [{"a": 1}]


@pytest.mark.parametrize("data", [b"oops", b"[1]", b'"text"'])
async def test_anything_else_is_an_error(data):
    with pytest.raises(CommandError, match="no JSON object"):
        await events_of(b"data: " + data + b"\n\n")
