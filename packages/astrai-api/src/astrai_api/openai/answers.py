"""The bodies of whole answers, for the OpenAPI document.

Builders make plain dictionaries, which are encoded without going through these models; the tests
hold the two together.
"""

from typing import Any, Literal

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Parts of the prompt."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Parts of the output."""

    reasoning_tokens: int


class CompletionUsage(BaseModel):
    """Token counts; the details of the output are there if the model reasons."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class TopLogprobEntry(BaseModel):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(TopLogprobEntry):
    """The token at a position and its alternatives."""

    top_logprobs: list[TopLogprobEntry]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat choice."""

    content: list[LogprobEntry]
    refusal: None


class CalledFunction(BaseModel):
    """The function of a call; its arguments are JSON, or the beginning of it if cut."""

    name: str
    arguments: str


class ChatToolCall(BaseModel):
    """A call for the client to run."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(BaseModel):
    """What the assistant said; without any text beside calls, its content is null."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(BaseModel):
    """One of the answers."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    """A whole answer of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextLogprobs(BaseModel):
    """Log-probabilities of a text completion: four lists of one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One of the completions."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class Completion(BaseModel):
    """A whole answer of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[LogprobEntry]


class OutputMessage(BaseModel):
    """The message of a response."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]


class ReasoningText(BaseModel):
    """What the model thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(BaseModel):
    """The reasoning of a response."""

    id: str
    type: Literal["reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(BaseModel):
    """A call for the client to run."""

    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class InputTokensDetails(BaseModel):
    """Parts of the input."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    """Parts of the output."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    """Why a response ends early."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A whole answer of ``POST /v1/responses``."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: None
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
