"""The bodies of whole answers, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel


class TextBlock(BaseModel):
    """A block of text."""

    type: Literal["text"]
    text: str


class MessageUsage(BaseModel):
    """Token counts; the first three add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """A whole answer of ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Answer of ``POST /v1/messages/count_tokens``."""

    input_tokens: int
