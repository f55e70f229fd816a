"""Known parameters that this server cannot honour: refused by name, never silently dropped."""

from collections.abc import Callable
from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.schemas import ChatCompletionRequest

_CANNOT_HONOUR: dict[str, Callable[[Any], bool]] = {
    "audio": bool,
    "function_call": lambda value: value not in ("auto", "none"),
    "functions": bool,
    "grammar": bool,
    "json_schema": bool,
    "modalities": lambda value: value != ["text"],
    "moderation": bool,
    "prompt_logprobs": bool,
    "structured_outputs": bool,
    "use_beam_search": bool,
    "web_search_options": lambda value: value is not None,
}
"""Undeclared field to whether a value of it asks for something."""


def check_supported(request: ChatCompletionRequest) -> None:
    """Refuse what would change the answer and is not implemented.

    Raises:
        ApiError: 400, naming the parameter.
    """
    for name, value in (request.model_extra or {}).items():
        asks = bool if name.startswith("guided_") else _CANNOT_HONOUR.get(name)
        if asks is not None and asks(value):
            raise bad_request(f"{name} is not supported by this server.", param=name)
    _check_tools(request)
    _check_response_format(request)


def _check_tools(request: ChatCompletionRequest) -> None:
    choice = request.tool_choice
    if choice == "none":
        return
    if request.tools:
        raise bad_request(
            'tools are not supported by this server yet; leave them out, or send "tool_choice": '
            '"none" to get text.',
            param="tools",
        )
    if choice is not None and choice != "auto":
        raise bad_request("tool_choice asks for a tool, but tools has none.", param="tool_choice")


def _check_response_format(request: ChatCompletionRequest) -> None:
    if request.response_format is not None and request.response_format.get("type") != "text":
        kind = request.response_format.get("type")
        raise bad_request(
            f"response_format of type {kind!r} is not supported by this server; use 'text'.",
            param="response_format",
        )
