"""A tool that a model may call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NONE = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's definition, the same for all protocols.

    Attributes:
        name: how the model calls it.
        description: what it does, for the model to read; None if its name says it all.
        parameters: JSON schema of its arguments, which are one object; it takes none unless given.
        strict: its calls must match the schema even where the model is free to call.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NONE))
    strict: bool = False

    def as_openai(self) -> dict[str, Any]:
        """The definition as OpenAI writes it, which chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}
