"""Tool calls and their results in the messages of earlier turns."""

from typing import Any


def name_results(messages: list[dict[str, Any]]) -> None:
    """Give results the name of the tool they are from, which many chat templates read.

    Args:
        messages: as chat templates read them, oldest first; changed in place.
    """
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            name = names.get(message.get("tool_call_id", ""))
            if name:
                message["name"] = name
