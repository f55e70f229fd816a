"""Every error the server can answer with: one status table, one body per protocol."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.sse import encode_json
from astrai_engine.errors import (
    AstraiError,
    DeadlineExceededError,
    EngineUnavailableError,
    GenerationError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)

logger = logging.getLogger(__name__)

_OPENAI_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_RETRY_AFTER_SECONDS = 1.0
_UNION_TAG = re.compile(r"\[|^(str|dict)$")


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: HTTP status code.
        message: a sentence that says what is wrong and what to do.
        code: a word a program can branch on.
        param: the request field at fault.
        retry_after: seconds after which trying again makes sense.
        detail: the value of the body's ``detail`` key; the message by default.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        detail: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.detail = message if detail is None else detail
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is well formed but cannot be served as it stands."""
    return ApiError(400, message, param=param, code=code)


def to_api_error(error: Exception) -> ApiError:
    """The answer an exception stands for; unexpected ones become a 500 that tells nothing."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _validation_error(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case RecursionError():
            return bad_request("The request body is nested too deeply.")
        case AstraiError():
            return _engine_error(error)
        case _:
            return ApiError(500, "The server failed to handle this request.", code="internal_error")


def _engine_error(error: AstraiError) -> ApiError:
    message = str(error)
    match error:
        case PromptTooLongError():
            return bad_request(message, param=error.param, code="context_length_exceeded")
        case RequestError():
            return bad_request(message, param=error.param)
        case QueueFullError():
            return ApiError(429, message, code="queue_full", retry_after=error.retry_after)
        case DeadlineExceededError():
            return ApiError(
                503, message, code="deadline_exceeded", retry_after=_RETRY_AFTER_SECONDS
            )
        case EngineUnavailableError():
            return ApiError(
                503, message, code="engine_unavailable", retry_after=_RETRY_AFTER_SECONDS
            )
        case GenerationError():
            return ApiError(500, message, code="generation_failed")
        case _:
            return ApiError(500, message, code="internal_error")


def _validation_error(errors: Sequence[Any]) -> ApiError:
    detail = [{"type": e["type"], "loc": list(e["loc"]), "msg": e["msg"]} for e in errors]
    same_field = [e for e in errors if e["loc"][:2] == errors[0]["loc"][:2]]
    # Of what a union tried, the attempt that got furthest is what the client meant.
    told = max(same_field, key=lambda error: len(error["loc"]))
    param = _field_path(told["loc"])
    prefix = f"{param}: " if param else ""
    return ApiError(422, f"{prefix}{told['msg']}", param=param or None, detail=detail)


def _field_path(loc: Sequence[str | int]) -> str:
    """``("body", "messages", 0, "content", "str")`` as ``messages[0].content``."""
    path = ""
    for part in loc[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_TAG.search(part):
            path += f".{part}" if path else part
    return path


def openai_error(error: ApiError) -> dict[str, Any]:
    """The error object of the OpenAI protocol."""
    fallback = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "message": error.message,
        "type": _OPENAI_TYPES.get(error.status, fallback),
        "param": error.param,
        "code": error.code,
    }


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The error object of the Anthropic protocol."""
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": _ANTHROPIC_TYPES.get(error.status, fallback), "message": error.message}


def error_body(error: ApiError, scope: Scope) -> dict[str, Any]:
    """The whole body, in the protocol that the path belongs to."""
    if scope["path"].startswith("/v1/messages"):
        return {
            "type": "error",
            "error": anthropic_error(error),
            "request_id": scope.get("state", {}).get("request_id"),
            "detail": error.detail,
        }
    return {"error": openai_error(error), "detail": error.detail}


def error_response(error: ApiError, scope: Scope, **extra: Any) -> Response:
    """The response for an error; ``extra`` joins the top level of the body."""
    content = encode_json({**error_body(error, scope), **extra})
    return Response(content, error.status, error.headers, "application/json")


async def answer_exception(request: Request, exception: Exception) -> Response:
    """Exception handler for everything raised inside a route on purpose."""
    return error_response(to_api_error(exception), request.scope)


class ErrorBoundary:
    """ASGI middleware that turns whatever escapes into an error body, and logs the unexpected."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app and answer what it raises."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return  # nobody is left to answer
        except Exception as exception:
            error = to_api_error(exception)
            if error.status == 500:
                logger.exception("Request %s failed", scope.get("state", {}).get("request_id"))
            if started:
                raise
            await error_response(error, scope)(scope, receive, send)
