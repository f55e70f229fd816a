"""Known parameters that this server cannot honour: refused by name, never silently dropped."""

from collections.abc import Callable, Mapping
from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.completion_schemas import CompletionRequest
from astrai_api.openai.response_schemas import ResponsesRequest
from astrai_api.openai.sampling import SamplingRequest
from astrai_api.openai.schemas import ChatCompletionRequest

Asks = Callable[[Any], bool]
"""Whether a value of a field asks for something."""

_ANYWHERE: dict[str, Asks] = {
    "grammar": bool,
    "json_schema": bool,
    "prompt_logprobs": bool,
    "use_beam_search": bool,
}
_CHAT: dict[str, Asks] = {
    "audio": bool,
    "function_call": lambda value: value not in ("auto", "none"),
    "functions": bool,
    "modalities": lambda value: value != ["text"],
    "moderation": bool,
    "web_search_options": lambda value: value is not None,
}
_COMPLETIONS: dict[str, Asks] = {
    "suffix": bool,
}
_RESPONSES: dict[str, Asks] = {
    "background": bool,
    "conversation": bool,
    "moderation": bool,
    "previous_response_id": bool,
    "prompt": bool,
}


def check_chat(request: ChatCompletionRequest) -> None:
    """Refuse what would change a chat's answer and is not implemented.

    Raises:
        ApiError: 400, naming the parameter.
    """
    _check_undeclared(request, _CHAT)


def check_completion(request: CompletionRequest) -> None:
    """Refuse what would change a completion and is not implemented.

    Raises:
        ApiError: 400, naming the parameter.
    """
    _check_undeclared(request, _COMPLETIONS)
    if request.best_of not in (None, request.n):
        raise bad_request(
            f"best_of must be equal to n, which is {request.n}: this server returns all it makes.",
            param="best_of",
        )


def check_response(request: ResponsesRequest) -> None:
    """Refuse what would change a response and is not implemented.

    Raises:
        ApiError: 400, naming the parameter.
    """
    _check_undeclared(request, _RESPONSES)


def _check_undeclared(request: SamplingRequest, cannot_honour: Mapping[str, Asks]) -> None:
    for name, value in (request.model_extra or {}).items():
        asks = bool if name.startswith("guided_") else {**_ANYWHERE, **cannot_honour}.get(name)
        if asks is not None and asks(value):
            raise bad_request(f"{name} is not supported by this server.", param=name)
