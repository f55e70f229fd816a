"""The blocks of an answer as chat messages, whole or piece by piece."""

from typing import Any

from astrai_api.answer import Block, BlockEvent, BlockKind, BlockStarted, BlockText
from astrai_api.builder import Choice


def chat_delta(event: BlockEvent) -> dict[str, Any] | None:
    """The delta of a chunk; None for what chats do not tell.

    Name and id of a call come once, when it begins: clients join what is sent twice.
    """
    match event:
        case BlockStarted(block) if block.kind is BlockKind.CALL:
            return {"tool_calls": [{"index": block.call_number, **_call(block, arguments="")}]}
        case BlockText(block, text) if block.kind is BlockKind.CALL:
            return {"tool_calls": [{"index": block.call_number, "function": {"arguments": text}}]}
        case BlockText(block, text) if block.kind is BlockKind.REASONING:
            return {"reasoning_content": text}
        case BlockText(_, text):
            return {"content": text}
        case _:
            return None


def chat_message(choice: Choice) -> dict[str, Any]:
    """The whole message; its content is null beside calls that come without text."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.answer is None:
        return message
    calls = [block for block in choice.answer.blocks if block.kind is BlockKind.CALL]
    content = _joined(choice.answer.blocks, BlockKind.TEXT)
    message["content"] = content if content or not calls else None
    if reasoning := _joined(choice.answer.blocks, BlockKind.REASONING):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(block, block.text) for block in calls]
    return message


def _call(block: Block, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{block.key}",
        "type": "function",
        "function": {"name": block.name, "arguments": arguments},
    }


def _joined(blocks: list[Block], kind: BlockKind) -> str:
    return "".join(block.text for block in blocks if block.kind is kind)
