"""How a stream of events ends when the replica that made it is gone."""

from astrai_api.errors import ApiError, openai_error
from astrai_api.sse import encode_event
from astrai_api.stream_errors import anthropic_stream_error, openai_stream_error


def stream_error(path: str, error: ApiError) -> bytes:
    """The last events of a stream that fails midway, in the words of the protocol of its path."""
    if path.startswith("/v1/messages"):
        return anthropic_stream_error(error)
    if path.startswith("/v1/responses"):
        told = openai_error(error)
        return encode_event({**told, "type": "error", "error": told}, "error")
    return openai_stream_error(error)
