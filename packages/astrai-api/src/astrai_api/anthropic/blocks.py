"""The blocks of an answer as content blocks of a message, whole or as events."""

import json
import sys
from typing import Any

from pydantic_core import from_json

from astrai_api.answer import Block, BlockEvent, BlockKind, BlockStarted, BlockText
from astrai_api.sse import HOLE, EventTemplate, encode_event, encode_json

_TEXT_DELTA = EventTemplate(
    {
        "type": "content_block_delta",
        "index": HOLE,
        "delta": {"type": "text_delta", "text": HOLE},
    },
    "content_block_delta",
)
_DELTAS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


def text_delta(place: int, text: str) -> bytes:
    """The event of new text."""
    return _TEXT_DELTA.fill(place, text)


def block_event(event: BlockEvent) -> bytes:
    """The event of a stream, or the two, that tell what happened to a block."""
    match event:
        case BlockStarted(block):
            return named_event(
                "content_block_start", index=block.place, content_block=_content(block, "")
            )
        case BlockText(block, text) if block.kind is BlockKind.TEXT:
            return text_delta(block.place, text)
        case BlockText(block, text):
            kind, name = _DELTAS[block.kind]
            return _delta(block, kind, **{name: text})
        case _:
            block = event.block
            end = named_event("content_block_stop", index=block.place)
            if block.kind is BlockKind.REASONING:
                return _delta(block, "signature_delta", signature="") + end
            return end


def content_block(block: Block) -> dict[str, Any]:
    """The whole block."""
    return _content(block, block.text)


def named_event(name: str, **fields: Any) -> bytes:
    """An event, which has its name in its data too."""
    return encode_event({"type": name, **fields}, name)


def _delta(block: Block, kind: str, **fields: Any) -> bytes:
    delta = {"type": kind, **fields}
    return named_event("content_block_delta", index=block.place, delta=delta)


def _content(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case BlockKind.TEXT:
            return {"type": "text", "text": text}
        case BlockKind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case BlockKind.CALL:
            head = {"type": "tool_use", "id": f"toolu_{block.key}", "name": block.name}
            return {**head, "input": _input(text)}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; of one that was cut, the entries that are whole."""
    for parse in (_whole, _beginning):
        try:
            value = parse(arguments)
            encode_json(value)  # not all that can be read can be sent
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _whole(arguments: str) -> Any:
    return json.loads(arguments, parse_float=_finite)


def _beginning(arguments: str) -> Any:
    return from_json(arguments, allow_inf_nan=False, allow_partial=True)


def _finite(digits: str) -> float:
    """Numbers out of range, which the wire can't carry, become the nearest that it can."""
    largest = sys.float_info.max
    return max(-largest, min(largest, float(digits)))
