"""Structured output in the OpenAI protocols: their own field, and the extensions of vLLM."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.sampling import SamplingRequest
from astrai_api.structured_output import only_one, schema_grammar
from astrai_engine.grammar import Grammar


class StructuredRequest(SamplingRequest):
    """A request whose text can be held to a grammar."""

    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None


def requested_output(request: StructuredRequest, param: str, given: Any) -> Grammar | None:
    """What a request wants its text to look like; None leaves the model free.

    Args:
        request: for the extensions.
        param: the protocol's own field.
        given: its value.

    Raises:
        ApiError: 400; more than one field asks, or one in a way nobody knows.
        InvalidRequestError: what is asked for is too large or too deep.
    """
    found = [_from_format(given, param), *_from_extensions(request)]
    return only_one([grammar for grammar in found if grammar is not None])


def _from_format(given: Any, param: str) -> Grammar | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else given
    match kind:
        case "text":
            return None
        case "json_object" if "schema" not in given:
            return Grammar.json_object(source=param)
        case "json_object" | "json_schema":
            # Chats have the schema in an object of its own, responses beside the type.
            holder = given.get("json_schema", given)
            schema = holder.get("schema") if isinstance(holder, Mapping) else None
            return schema_grammar(schema, param)
        case _:
            raise bad_request(
                f"{param} must be an object of the type text, json_object or json_schema.",
                param=param,
            )


def _from_extensions(request: StructuredRequest) -> list[Grammar]:
    wanted = [
        (f"guided_{kind}", kind, getattr(request, f"guided_{kind}"))
        for kind in ("json", "regex", "choice", "grammar")
    ]
    wanted += [
        (f"structured_outputs.{kind}", kind, value)
        for kind, value in (request.structured_outputs or {}).items()
    ]
    return [
        _MAKERS.get(kind, _refuse)(value, param)
        for param, kind, value in wanted
        if value is not None and value is not False
    ]


def _json(value: Any, param: str) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{param} is not valid JSON: {error}.", param=param) from None
    return schema_grammar(value, param)


def _json_object(value: Any, param: str) -> Grammar:  # noqa: ARG001 (true is all it can be)
    return Grammar.json_object(source=param)


def _regex(value: Any, param: str) -> Grammar:
    return Grammar.regex(_text(value, param), source=param)


def _lark(value: Any, param: str) -> Grammar:
    return Grammar.lark(_text(value, param), source=param)


def _choice(value: Any, param: str) -> Grammar:
    if not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise bad_request(f"{param} must be a list of strings.", param=param)
    return Grammar.choice(value, source=param)


def _refuse(value: Any, param: str) -> Grammar:  # noqa: ARG001 (none is supported)
    raise bad_request(f"{param} is not supported by this server.", param=param)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{param} must be a string.", param=param)
    return value


_MAKERS: Mapping[str, Callable[[Any, str], Grammar]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
