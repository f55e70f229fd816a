"""Request models of chat completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from astrai_api.openai.sampling import (
    DEFAULT_MAX_TOKENS,
    StreamOptions,
    TokenLimit,
)
from astrai_api.openai.structured_output import StructuredRequest
from astrai_api.wire import Bool, Int, NotEmpty, Nullable, WireModel
from astrai_engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class ContentPart(WireModel):
    """One part of a message's content; what each type holds is checked when it is used."""

    type: str
    text: Nullable[str] = ""
    refusal: Nullable[str] = ""


class FunctionCall(WireModel):
    """What a function is called with."""

    name: str
    arguments: Nullable[str | dict[str, Any]] = "{}"


class ToolCall(WireModel):
    """A call that the assistant made earlier."""

    id: Nullable[str] = ""
    function: FunctionCall


class ChatMessage(WireModel):
    """One message of the conversation."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: Nullable[str] = ""
    reasoning_content: Nullable[str] = ""
    tool_calls: Nullable[list[ToolCall]] = Field(default_factory=list)
    function_call: FunctionCall | None = None
    tool_call_id: Nullable[str] = ""

    @model_validator(mode="after")
    def _only_the_assistant_may_be_silent(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class FunctionDefinition(WireModel):
    """A function the model may call."""

    name: str
    description: Nullable[str] = ""
    parameters: Nullable[dict[str, Any]] = Field(default_factory=dict)
    strict: Nullable[Bool] = False


class ToolDef(WireModel):
    """A tool definition."""

    type: str
    function: FunctionDefinition | None = None


class ChatCompletionRequest(StructuredRequest):
    """Body of ``POST /v1/chat/completions``.

    Fields that are not declared are ignored, save those in ``astrai_api.openai.refusals``.
    """

    messages: list[ChatMessage] = NotEmpty
    max_tokens: Nullable[TokenLimit] = DEFAULT_MAX_TOKENS
    max_completion_tokens: TokenLimit | None = None
    stream_options: Nullable[StreamOptions] = StreamOptions()
    n: Nullable[Annotated[Int, Field(ge=1, le=MAX_CHOICES)]] = 1
    logprobs: Nullable[Bool] = False
    top_logprobs: Nullable[Annotated[Int, Field(ge=0, le=MAX_TOP_LOGPROBS)]] = 0
    tools: Nullable[list[ToolDef]] = Field(default_factory=list)
    tool_choice: Nullable[str | dict[str, Any]] = "auto"
    parallel_tool_calls: Nullable[Bool] = True
    response_format: dict[str, Any] | None = None
    reasoning_effort: Nullable[str] = ""
    include_reasoning: Nullable[Bool] = True
    chat_template_kwargs: Nullable[dict[str, Any]] = Field(default_factory=dict)

    @property
    def token_limit(self) -> int:
        """Most tokens to generate; the newer field wins."""
        return self.max_completion_tokens or self.max_tokens
