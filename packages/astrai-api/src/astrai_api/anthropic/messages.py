"""Anthropic messages as chat templates read them."""

import re
from typing import Any

from astrai_api.anthropic.schemas import AnthropicMessage, ContentBlock
from astrai_api.errors import bad_request
from astrai_api.tools.history import name_results

_DROPPED_BLOCKS = {"thinking", "redacted_thinking"}
_BILLING_LINE = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that some agents put in front of their system prompt, different in every request: it
means nothing to the model and would keep its prefix from ever being reused."""

Message = dict[str, Any]


def template_messages(
    system: str | list[ContentBlock] | None, messages: list[AnthropicMessage]
) -> list[Message]:
    """The system prompt and all messages, in their order.

    Tool results become messages of their own; neighbours of the same role become one. System
    messages stay where they are, so that each turn's prompt begins with the turn's before.

    Raises:
        ApiError: a block is not one a text model reads.
    """
    rendered = [{"role": "system", "content": text}] if (text := _system_text(system)) else []
    for i, message in enumerate(messages):
        for new in _template_messages(message, f"messages[{i}].content"):
            if rendered and _joins(rendered[-1], new):
                _join(rendered[-1], new)
            else:
                rendered.append(new)
    name_results(rendered)
    return rendered


def _system_text(system: str | list[ContentBlock] | None) -> str:
    blocks = [system] if isinstance(system, str) else _texts(system or [], "system")
    return "\n".join(text for block in blocks if (text := _BILLING_LINE.sub("", block)))


def _template_messages(message: AnthropicMessage, path: str) -> list[Message]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "system":
        return [{"role": "system", "content": "\n".join(_texts(message.content, path))}]
    rendered: list[Message] = []
    for i, block in enumerate(message.content):
        if block.type in _DROPPED_BLOCKS:
            continue
        new = _block_message(block, message.role, f"{path}[{i}]")
        if rendered and _joins(rendered[-1], new):
            _join(rendered[-1], new)
        else:
            rendered.append(new)
    return rendered or [{"role": message.role, "content": ""}]


def _block_message(block: ContentBlock, role: str, path: str) -> Message:
    match block.type:
        case "text":
            return {"role": role, "content": block.text}
        case "tool_use":
            function = {"name": block.name, "arguments": block.input}
            call = {"id": block.id, "type": "function", "function": function}
            return {"role": role, "content": "", "tool_calls": [call]}
        case "tool_result":
            text = _result_text(block, f"{path}.content")
            if block.is_error:
                text = f"Error: {text}"
            return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
        case _:
            raise _unreadable(block, path)


def _result_text(block: ContentBlock, path: str) -> str:
    if isinstance(block.content, list):
        return "\n".join(_texts(block.content, path))
    if isinstance(block.content, dict):
        raise bad_request(f"{path} must be text or a list of text blocks.", param=path)
    return block.content or ""


def _texts(blocks: list[ContentBlock], path: str) -> list[str]:
    for i, block in enumerate(blocks):
        if block.type != "text":
            raise _unreadable(block, f"{path}[{i}]")
    return [block.text for block in blocks if block.text]


def _unreadable(block: ContentBlock, path: str) -> Exception:
    return bad_request(
        f"{path}: this model reads text only, not blocks of type {block.type!r}.",
        param=f"{path}.type",
    )


def _joins(before: Message, new: Message) -> bool:
    return before["role"] == new["role"] and new["role"] in ("user", "assistant")


def _join(before: Message, new: Message) -> None:
    before["content"] = "\n".join(text for text in (before["content"], new["content"]) if text)
    if calls := before.get("tool_calls", []) + new.get("tool_calls", []):
        before["tool_calls"] = calls
