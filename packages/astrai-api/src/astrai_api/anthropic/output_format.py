"""Structured output in the Anthropic protocol."""

from typing import Any

from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.errors import bad_request
from astrai_api.structured_output import only_one, schema_grammar
from astrai_engine.grammar import Grammar


def requested_output(request: MessagesRequest) -> Grammar | None:
    """What a request wants its text to look like; None leaves the model free.

    Raises:
        ApiError: 400; both fields ask, or one in a way that can't be enforced.
    """
    formats = {
        "output_config.format": request.output_config.get("format"),
        "output_format": request.output_format,
    }
    return only_one([_grammar(given, param) for param, given in formats.items() if given])


def _grammar(given: Any, param: str) -> Grammar:
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        raise bad_request(f"{param} must be an object of the type json_schema.", param=param)
    return schema_grammar(given.get("schema"), param)
