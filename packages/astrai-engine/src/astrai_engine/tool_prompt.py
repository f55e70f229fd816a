"""Tools for models whose chat template knows of none: told in the text of the messages.

Calls are written as Hermes models write them, JSON between ``<tool_call>`` tags, and results stand
between ``<tool_response>`` tags in a message of the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_PROMPT = """\
You can call these tools, whose definitions stand between <tools> tags, one a line:
<tools>
{definitions}
</tools>

To call a tool, write a JSON object with its name and its arguments between <tool_call> tags. To \
call several, write one pair of tags for each:
<tool_call>
{{"name": "the tool's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>

The results come between <tool_response> tags. Call tools only when they help, and answer the user \
once you have what you need."""

_SYSTEM_ROLES = ("system", "developer")


def tool_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """What tells a model of its tools.

    Args:
        tools: their definitions, as templates take them.
    """
    definitions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _PROMPT.format(definitions=definitions)


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[list[Message]]:
    """A chat in which tools are nothing but text.

    Args:
        messages: the chat, oldest first. Calls in it become the assistant's text and results the
            user's; results that follow one another make one message.
        tools: definitions, told of at the end of the system message.

    Returns:
        The chat, and another that tells of the tools in the user's first message, for templates
        that refuse a system message.
    """
    written = _history_as_text(messages)
    if not tools:
        return [written]
    prompt = tool_prompt(tools)
    return [_told_by_system(written, prompt), _told_by_user(written, prompt)]


def _told_by_system(messages: list[Message], prompt: str) -> list[Message]:
    if not messages or messages[0].get("role") not in _SYSTEM_ROLES:
        return [{"role": "system", "content": prompt}, *messages]
    first = messages[0]
    return [{**first, "content": _joined(_text(first), prompt)}, *messages[1:]]


def _told_by_user(messages: list[Message], prompt: str) -> list[Message]:
    users = (place for place, message in enumerate(messages) if message.get("role") == "user")
    place = next(users, None)
    if place is None:
        return [{"role": "user", "content": prompt}, *messages]
    told = {**messages[place], "content": _joined(prompt, _text(messages[place]))}
    return [*messages[:place], told, *messages[place + 1 :]]


def _history_as_text(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    written: list[Message] = []
    was_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if not is_result:
            written.append(_calls_as_text(message))
        else:
            result = f"<tool_response>\n{_text(message)}\n</tool_response>"
            before = [written.pop()["content"]] if was_result else []
            written.append({"role": "user", "content": "\n".join([*before, result])})
        was_result = is_result
    return written


def _calls_as_text(message: Mapping[str, Any]) -> Message:
    written = dict(message)
    calls = written.pop("tool_calls", None)
    if calls:
        texts = [_text(message), *map(_call_as_text, calls)]
        written["content"] = "\n".join(text for text in texts if text)
    return written


def _call_as_text(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    name, arguments = function.get("name"), function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return f"<tool_call>\n{begin}{arguments}}}\n</tool_call>"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
