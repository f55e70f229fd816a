"""Request models of the OpenAI protocol."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from astrai_api.served_models import DEFAULT_MODEL
from astrai_api.wire import Bool, Float, Int, Int64, Nullable, WireModel
from astrai_engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
Penalty = Annotated[Float, Field(ge=-2.0, le=2.0)]
Bias = Annotated[Float, Field(ge=-100.0, le=100.0)]
TokenLimit = Annotated[Int, Field(ge=1)]


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


class ToolDef(WireModel):
    """A tool definition."""

    type: str
    function: FunctionDefinition | None = None


class StreamOptions(WireModel):
    """What a stream carries besides text."""

    include_usage: Nullable[Bool] = False


class ChatCompletionRequest(WireModel):
    """Body of ``POST /v1/chat/completions``.

    Fields that are not declared are ignored, save those in ``astrai_api.openai.refusals``.
    """

    model: Nullable[str] = DEFAULT_MODEL
    messages: list[ChatMessage]
    temperature: Nullable[Annotated[Float, Field(ge=0.0, le=2.0)]] = 1.0
    top_p: Nullable[Annotated[Float, Field(ge=0.0, le=1.0)]] = 1.0
    top_k: Nullable[Annotated[Int, Field(ge=-1)]] = 50
    min_p: Nullable[Annotated[Float, Field(ge=0.0, le=1.0)]] = 0.0
    max_tokens: Nullable[TokenLimit] = 2048
    max_completion_tokens: TokenLimit | None = None
    min_tokens: Nullable[Annotated[Int, Field(ge=0)]] = 0
    stream: Nullable[Bool] = False
    stream_options: Nullable[StreamOptions] = StreamOptions()
    stop: str | list[Any] | None = None
    stop_token_ids: Nullable[list[Int]] = Field(default_factory=list)
    ignore_eos: Nullable[Bool] = False
    n: Nullable[Annotated[Int, Field(ge=1, le=MAX_CHOICES)]] = 1
    presence_penalty: Nullable[Penalty] = 0.0
    frequency_penalty: Nullable[Penalty] = 0.0
    repetition_penalty: Nullable[Annotated[Float, Field(gt=0.0)]] = 1.0
    logit_bias: Nullable[dict[int, Bias]] = Field(default_factory=dict)
    logprobs: Nullable[Bool] = False
    top_logprobs: Nullable[Annotated[Int, Field(ge=0, le=MAX_TOP_LOGPROBS)]] = 0
    seed: Int64 | None = None
    user: str | None = None
    tools: Nullable[list[ToolDef]] = Field(default_factory=list)
    tool_choice: Nullable[str | dict[str, Any]] = "auto"
    response_format: dict[str, Any] | None = None
    cache_salt: str | None = None
    chat_template_kwargs: Nullable[dict[str, Any]] = Field(default_factory=dict)

    @property
    def token_limit(self) -> int:
        """Most tokens to generate; the newer field wins."""
        return self.max_completion_tokens or self.max_tokens
