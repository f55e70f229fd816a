"""Request model of responses."""

from typing import Annotated, Any

from pydantic import Field

from astrai_api.openai.sampling import TokenLimit
from astrai_api.openai.structured_output import StructuredRequest
from astrai_api.wire import Bool, Int, Nullable, WireModel
from astrai_engine.request import MAX_TOP_LOGPROBS


class InputPart(WireModel):
    """One part of an item's content; what each type holds is checked when it is used."""

    type: str
    text: Nullable[str] = ""
    refusal: Nullable[str] = ""


class InputItem(WireModel):
    """One item of the conversation; without a type it is a message."""

    type: Nullable[str] = "message"
    role: Nullable[str] = ""
    content: str | list[InputPart] | None = None
    call_id: Nullable[str] = ""
    name: Nullable[str] = ""
    arguments: Nullable[str | dict[str, Any]] = "{}"
    input: Nullable[str] = ""
    output: str | list[InputPart] | None = None


class ResponseTool(WireModel):
    """A tool definition; only functions are used."""

    type: str
    name: Nullable[str] = ""
    description: Nullable[str] = ""
    parameters: Nullable[dict[str, Any]] = Field(default_factory=dict)
    strict: Nullable[Bool] = False

    def echo(self) -> dict[str, Any]:
        """The definition as the response repeats it."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description or None,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class ResponsesRequest(StructuredRequest):
    """Body of ``POST /v1/responses``.

    Fields that are not declared are ignored, save those in ``astrai_api.openai.refusals``.
    """

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: TokenLimit | None = None
    text: Nullable[dict[str, Any]] = Field(default_factory=dict)
    include: Nullable[list[Any]] = Field(default_factory=list)
    top_logprobs: Nullable[Annotated[Int, Field(ge=0, le=MAX_TOP_LOGPROBS)]] = 0
    tools: Nullable[list[ResponseTool]] = Field(default_factory=list)
    tool_choice: Nullable[str | dict[str, Any]] = "auto"
    parallel_tool_calls: Nullable[Bool] = True
    reasoning: Nullable[dict[str, Any]] = Field(default_factory=dict)
    metadata: Nullable[dict[str, Any]] = Field(default_factory=dict)
    chat_template_kwargs: Nullable[dict[str, Any]] = Field(default_factory=dict)

    @property
    def function_tools(self) -> list[ResponseTool]:
        """The tools that are functions of the client's."""
        return [tool for tool in self.tools if tool.type == "function"]

    @property
    def logprobs(self) -> bool:
        """Whether the log-probabilities of the answer are asked for."""
        return self.top_logprobs > 0 or "message.output_text.logprobs" in self.include
