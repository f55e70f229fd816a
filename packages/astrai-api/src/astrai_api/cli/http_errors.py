"""What a server's refusal, or its silence, is in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from astrai_api.cli.exits import CommandError, ExitCode


@contextmanager
def unreachable(place: str) -> Iterator[None]:
    """Turn failures of the connection into errors that say so.

    Args:
        place: whom the block talks to.

    Raises:
        CommandError: nothing answers there, or it stopped.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise CommandError(
            f"No server answers at {place}; start one with 'astrai serve', or leave --url out to "
            "run the model in this process.",
            ExitCode.UNREACHABLE,
        ) from error
    except httpx.TransportError as error:
        raise CommandError(
            f"{place} stopped answering ({error or type(error).__name__}); see its log.",
            ExitCode.UNREACHABLE,
        ) from error


def answered(response: httpx.Response, place: str) -> dict[str, Any]:
    """The JSON object of a successful answer.

    Args:
        response: complete.
        place: who answered.

    Raises:
        CommandError: it is a refusal, or no JSON object.
    """
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    if response.is_success:
        raise CommandError(
            f"{place} is no OpenAI-compatible server: what it answered is not a JSON object.",
            ExitCode.UNREACHABLE,
        )
    raise refusal(response.status_code, body, place)


def refusal(status: int, body: Any, place: str) -> CommandError:
    """The error for an answer that is none.

    Args:
        status: of the HTTP answer.
        body: its JSON value, or None.
        place: who answered.
    """
    message = error_message(body) or f"{place} answered with status {status}."
    if status == httpx.codes.UNAUTHORIZED:
        message = f"{place} wants a key: give it with --api-key, or as ASTRAI_API_KEY. ({message})"
    lost = status >= httpx.codes.INTERNAL_SERVER_ERROR
    return CommandError(message, ExitCode.UNREACHABLE if lost else ExitCode.FAILED)


def error_message(body: Any) -> str | None:
    """The sentence in an error body of the OpenAI protocol, or in one like it."""
    error = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None
