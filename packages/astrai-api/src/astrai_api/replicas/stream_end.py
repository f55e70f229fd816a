"""How a stream of events ends when the replica that made it is gone."""

from astrai_api.errors import ApiError, anthropic_error, openai_error
from astrai_api.sse import DONE, encode_event


def stream_error(path: str, error: ApiError) -> bytes:
    """The last events of a stream that fails midway, in the words of the protocol of its path."""
    if path.startswith("/v1/messages"):
        return encode_event({"type": "error", "error": anthropic_error(error)}, "error")
    told = openai_error(error)
    if path.startswith("/v1/responses"):
        return encode_event({**told, "type": "error", "error": told}, "error")
    return encode_event({"error": told}) + DONE
