"""What the OpenAPI document says of a route besides its request body.

Bodies are made by hand and errors come from middleware, so FastAPI cannot see either: every route
names them here.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

ANTHROPIC_PATH = "/v1/messages"


class ErrorObject(BaseModel):
    """What went wrong, as the OpenAI protocol says it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every error outside ``/v1/messages``."""

    error: ErrorObject
    detail: Any = Field(description="The message; for 422, what is wrong with each field.")


class AnthropicErrorObject(BaseModel):
    """What went wrong, as the Anthropic protocol says it."""

    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    """The body of every error under ``/v1/messages``."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str | None
    detail: Any = Field(description="The message; for 422, what is wrong with each field.")


_ANY_ROUTE = {
    401: "no key, or a wrong one",
    431: "the headers are too large",
    500: "the server failed",
}
_BODY = {
    400: "not a JSON object, or impossible",
    404: "no such model",
    413: "the body is too large",
    422: "a field is missing, of the wrong type or out of range",
}
_ENGINE = {503: "not ready, shutting down, or out of time; with Retry-After"}
_QUEUE = {429: "too many requests wait; with Retry-After"}

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}

Responses = dict[int | str, dict[str, Any]]


def read_responses(answer: type[BaseModel], *, may_be_missing: bool = False) -> Responses:
    """The responses of a GET route."""
    missing = {404: _BODY[404]} if may_be_missing else {}
    return _responses(answer, {**_ANY_ROUTE, **_ENGINE, **missing}, ErrorAnswer)


def live_responses(answer: type[BaseModel]) -> Responses:
    """The responses of a GET route that answers once, or streams to whoever accepts events."""
    responses = read_responses(answer)
    responses[200]["content"] = {"text/event-stream": {"itemSchema": _EVENT}}
    responses[200]["description"] = (
        "One look, or for `Accept: text/event-stream` the event `engine` and then, without an "
        "end, `frame` events; their data are the two parts of the look."
    )
    return responses


def text_responses() -> Responses:
    """The responses of a GET route that answers with plain text, whatever the engine does."""
    responses = _responses(None, _ANY_ROUTE, ErrorAnswer)
    text = {"schema": {"type": "string"}}
    responses[200]["content"] = {"text/plain": text, "application/openmetrics-text": text}
    return responses


def write_responses(
    path: str, answer: type[BaseModel] | None, *, generates: bool = False
) -> Responses:
    """The responses of a POST route.

    Args:
        path: of the route, which decides what its errors look like.
        answer: the body of a response that is not streamed.
        generates: the route runs a request, and may stream its answer.
    """
    error = AnthropicErrorAnswer if path.startswith(ANTHROPIC_PATH) else ErrorAnswer
    statuses = {**_ANY_ROUTE, **_BODY, **_ENGINE, **(_QUEUE if generates else {})}
    responses = _responses(answer, statuses, error)
    if generates:
        responses[200]["content"] = {"text/event-stream": {"itemSchema": _EVENT}}
        responses[200]["description"] = "The whole answer, or its events if `stream` is true."
    return responses


def _responses(
    answer: type[BaseModel] | None, statuses: dict[int, str], error: type[BaseModel]
) -> Responses:
    success = {"model": answer} if answer else {}
    responses: Responses = {200: {"description": "Success", **success}}
    for status, description in statuses.items():
        responses[status] = {"description": description.capitalize() + ".", "model": error}
    return responses
