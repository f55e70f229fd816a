"""The bodies of whole answers, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel


class TextBlock(BaseModel):
    """A block of text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    """A block of reasoning; nothing is signed."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(BaseModel):
    """A call for the client to run."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(BaseModel):
    """Parts of the output."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts; the first three add up to the prompt.

    The details of the output are there if the model reasons.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class MessageAnswer(BaseModel):
    """A whole answer of ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Answer of ``POST /v1/messages/count_tokens``."""

    input_tokens: int
