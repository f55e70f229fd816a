"""The blocks of an answer as output items of a response: messages, reasoning and calls."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from astrai_api.answer import Block, BlockEvent, BlockKind, BlockStarted, BlockText
from astrai_api.openai.logprobs import logprob_entries
from astrai_engine.events import TokenLogprob

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
NamedEvent: TypeAlias = tuple[str, dict[str, Any]]
"""An event without its number: the name behind ``response.``, and the fields."""

_ID_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}


def item_id(block: Block) -> str:
    """The id of a block's item."""
    return f"{_ID_PREFIXES[block.kind]}_{block.key}"


def output_item(block: Block, status: Status) -> dict[str, Any]:
    """A block's item; without any text while it is in progress, when events bring that."""
    head = {"id": item_id(block), "status": status}
    is_new = status == "in_progress"
    parts = [] if is_new else [_part(block)]
    match block.kind:
        case BlockKind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": parts}
        case BlockKind.REASONING:
            return {**head, "type": "reasoning", "summary": [], "content": parts}
        case BlockKind.CALL:
            call = {"call_id": f"call_{block.key}", "name": block.name}
            arguments = "" if is_new else block.text
            return {**head, "type": "function_call", **call, "arguments": arguments}


def output_events(
    event: BlockEvent, status: Status, logprobs: Sequence[TokenLogprob] = ()
) -> list[NamedEvent]:
    """The events of a stream that tell what happened to a block.

    Args:
        event: what happened.
        status: of the block if this ends it.
        logprobs: entries of the tokens that came with it, told with a message's text only.
    """
    match event:
        case BlockStarted(block):
            return _started(block)
        case BlockText(block, text):
            return [_more(block, text, logprobs)]
        case _:
            return _ended(event.block, status)


def _started(block: Block) -> list[NamedEvent]:
    item = output_item(block, "in_progress")
    events: list[NamedEvent] = [("output_item.added", {"output_index": block.place, "item": item})]
    if block.kind is not BlockKind.CALL:
        empty = Block(block.kind)
        events.append(("content_part.added", {**_place(block), "part": _part(empty)}))
    return events


def _more(block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> NamedEvent:
    fields = {**_place(block), "delta": text}
    match block.kind:
        case BlockKind.TEXT:
            return "output_text.delta", {**fields, "logprobs": logprob_entries(logprobs)}
        case BlockKind.REASONING:
            return "reasoning_text.delta", fields
        case BlockKind.CALL:
            return "function_call_arguments.delta", fields


def _ended(block: Block, status: Status) -> list[NamedEvent]:
    item = output_item(block, status)
    events: list[NamedEvent] = []
    if block.kind is BlockKind.CALL:
        done = {"name": block.name, "arguments": block.text}
        events.append(("function_call_arguments.done", {**_place(block), **done}))
    else:
        part = item["content"][0]
        done = {key: part[key] for key in ("text", "logprobs") if key in part}
        name = "output_text.done" if block.kind is BlockKind.TEXT else "reasoning_text.done"
        events.append((name, {**_place(block), **done}))
        events.append(("content_part.done", {**_place(block), "part": part}))
    return [*events, ("output_item.done", {"output_index": block.place, "item": item})]


def _place(block: Block) -> dict[str, Any]:
    place = {"item_id": item_id(block), "output_index": block.place}
    return place if block.kind is BlockKind.CALL else {**place, "content_index": 0}


def _part(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {
        "type": "output_text",
        "text": block.text,
        "annotations": [],
        "logprobs": logprob_entries(block.logprobs),
    }
