"""The items of a Responses request as chat templates read them."""

from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.response_schemas import InputItem, InputPart
from astrai_api.tools.history import name_results

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_DROPPED_ITEMS = {"reasoning"}
_TEXT_PARTS = {"input_text", "output_text", "text", "summary_text"}

Message = dict[str, Any]


def template_messages(instructions: str | None, items: str | list[InputItem]) -> list[Message]:
    """The instructions and all items, in their order.

    The calls that follow a message of the assistant become part of it.

    Raises:
        ApiError: an item or a part is not one a text model reads.
    """
    rendered: list[Message] = []
    if instructions:
        rendered.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*rendered, {"role": "user", "content": items}]
    for i, item in enumerate(items):
        if item.type in _DROPPED_ITEMS:
            continue
        message = _message(item, f"input[{i}]")
        if "tool_calls" in message and rendered and rendered[-1]["role"] == "assistant":
            calls = rendered[-1].setdefault("tool_calls", [])
            calls.extend(message["tool_calls"])
        else:
            rendered.append(message)
    name_results(rendered)
    return rendered


def _message(item: InputItem, path: str) -> Message:
    match item.type:
        case "message":
            if item.role not in _ROLES:
                roles = ", ".join(_ROLES)
                raise bad_request(
                    f"{path}.role must be one of {roles}, not {item.role!r}.", param=f"{path}.role"
                )
            return {"role": _ROLES[item.role], "content": _text(item.content, f"{path}.content")}
        case "function_call":
            return _call(item, item.arguments)
        case "custom_tool_call":
            return _call(item, {"input": item.input})
        case "function_call_output" | "custom_tool_call_output":
            output = _text(item.output, f"{path}.output")
            return {"role": "tool", "tool_call_id": item.call_id, "content": output}
        case _:
            raise bad_request(
                f"{path}: this server does not read items of type {item.type!r}.",
                param=f"{path}.type",
            )


def _call(item: InputItem, arguments: str | dict[str, Any]) -> Message:
    function = {"name": item.name, "arguments": arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _text(content: str | list[InputPart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        if part.type not in _TEXT_PARTS and part.type != "refusal":
            raise bad_request(
                f"{path}[{i}]: this model reads text only, not parts of type {part.type!r}.",
                param=f"{path}[{i}].type",
            )
        texts.append(part.refusal if part.type == "refusal" else part.text)
    return "\n".join(text for text in texts if text)
