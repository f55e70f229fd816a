"""The last events of a stream that fails midway, where a protocol says so without more context."""

from astrai_api.errors import ApiError, anthropic_error, openai_error
from astrai_api.sse import DONE, encode_event


def openai_stream_error(error: ApiError) -> bytes:
    """The error event of chats and completions, and ``[DONE]``."""
    return encode_event({"error": openai_error(error)}) + DONE


def anthropic_stream_error(error: ApiError) -> bytes:
    """The ``error`` event of messages."""
    return encode_event({"type": "error", "error": anthropic_error(error)}, "error")
