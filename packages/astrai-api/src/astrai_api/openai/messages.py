"""OpenAI messages as chat templates read them."""

from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.schemas import ChatMessage, ContentPart, FunctionCall
from astrai_api.tools.history import name_results

_TEMPLATE_ROLES = {"developer": "system", "function": "tool"}
_KEPT_FIELDS = ("name", "reasoning_content", "tool_call_id")


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """All messages, in their order.

    Raises:
        ApiError: a message holds a part that is not text.
    """
    rendered = [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    name_results(rendered)
    return rendered


def _template_message(message: ChatMessage, path: str) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "role": _TEMPLATE_ROLES.get(message.role, message.role),
        "content": _text(message.content, f"{path}.content"),
    }
    for name in _KEPT_FIELDS:
        if value := getattr(message, name):
            rendered[name] = value
    calls = [_call(call.function, call.id) for call in message.tool_calls]
    if message.function_call is not None:
        calls.append(_call(message.function_call, ""))
    if calls:
        rendered["tool_calls"] = calls
    return rendered


def _call(function: FunctionCall, call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments},
    }


def _text(content: str | list[ContentPart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        if part.type not in ("text", "refusal"):
            raise bad_request(
                f"{path}[{i}]: this model reads text only, not parts of type {part.type!r}.",
                param=f"{path}[{i}].type",
            )
        texts.append(part.refusal if part.type == "refusal" else part.text)
    return "\n".join(text for text in texts if text)
