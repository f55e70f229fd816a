"""Request models of the Anthropic protocol."""

from typing import Annotated, Any, Literal

from pydantic import Field

from astrai_api.served_models import DEFAULT_MODEL
from astrai_api.wire import Bool, Float, Int, NotEmpty, Nullable, WireModel


class ContentBlock(WireModel):
    """One block of content; what each type holds is checked when it is used."""

    type: str
    text: Nullable[str] = ""
    id: Nullable[str] = ""
    name: Nullable[str] = ""
    input: Nullable[dict[str, Any]] = Field(default_factory=dict)
    tool_use_id: Nullable[str] = ""
    content: str | list["ContentBlock"] | dict[str, Any] | None = None
    is_error: Nullable[Bool] = False


class AnthropicMessage(WireModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ToolDef(WireModel):
    """A tool definition."""

    type: Nullable[str] = "custom"
    name: str
    description: Nullable[str] = ""
    input_schema: Nullable[dict[str, Any]] = Field(default_factory=dict)
    strict: Nullable[Bool] = False


class MessagesRequest(WireModel):
    """Body of ``POST /v1/messages``.

    Fields that are not declared are ignored.
    """

    model: Nullable[str] = DEFAULT_MODEL
    messages: list[AnthropicMessage] = NotEmpty
    system: str | list[ContentBlock] | None = None
    max_tokens: Nullable[Annotated[Int, Field(ge=0)]] = 1024
    temperature: Nullable[Annotated[Float, Field(ge=0.0, le=2.0)]] = 1.0
    top_p: Nullable[Annotated[Float, Field(ge=0.0, le=1.0)]] = 1.0
    top_k: Nullable[Annotated[Int, Field(ge=-1)]] = 50
    stream: Nullable[Bool] = False
    stop_sequences: Nullable[list[Any]] = Field(default_factory=list)
    tools: Nullable[list[ToolDef]] = Field(default_factory=list)
    tool_choice: Nullable[dict[str, Any]] = Field(default_factory=dict)
    thinking: Nullable[dict[str, Any]] = Field(default_factory=dict)
    output_config: Nullable[dict[str, Any]] = Field(default_factory=dict)
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: Nullable[dict[str, Any]] = Field(default_factory=dict)
    mcp_servers: Nullable[list[Any]] = Field(default_factory=list)
