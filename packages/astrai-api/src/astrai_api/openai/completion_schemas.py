"""Request model of text completions."""

from typing import Annotated, Any

from pydantic import Field, StrictInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from astrai_api.openai.sampling import StreamOptions
from astrai_api.openai.structured_output import StructuredRequest
from astrai_api.wire import Bool, Int, Nullable
from astrai_engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS

TokenIds = list[StrictInt]
Prompts = (
    str
    | Annotated[TokenIds, Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1)]
    | Annotated[list[TokenIds], Field(min_length=1)]
)


class CompletionRequest(StructuredRequest):
    """Body of ``POST /v1/completions``.

    Fields that are not declared are ignored, save those in ``astrai_api.openai.refusals``.
    """

    prompt: Prompts
    echo: Nullable[Bool] = False
    max_tokens: Nullable[Annotated[Int, Field(ge=0)]] = 16
    stream_options: Nullable[StreamOptions] = StreamOptions()
    n: Nullable[Annotated[Int, Field(ge=1, le=MAX_CHOICES)]] = 1
    best_of: Int | None = None
    response_format: dict[str, Any] | None = None
    logprobs: Annotated[Int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @field_validator("max_tokens")
    @classmethod
    def _nothing_only_after_an_echo(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and not info.data.get("echo"):
            raise PydanticCustomError(
                "max_tokens", "Input should be greater than or equal to 1, or 0 with echo"
            )
        return value

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
