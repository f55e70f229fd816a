"""The sampling parameters that all OpenAI endpoints have in common."""

from typing import Annotated, Any

from pydantic import Field

from astrai_api.builder import RequestContext
from astrai_api.client import EngineClient
from astrai_api.model_defaults import model_defaults
from astrai_api.served_models import DEFAULT_MODEL
from astrai_api.stops import stop_strings
from astrai_api.wire import Bool, Float, Int, Int64, Nullable, WireModel

DEFAULT_MAX_TOKENS = 2048
"""Most tokens of a chat's answer when the client names no limit."""

Penalty = Annotated[Float, Field(ge=-2.0, le=2.0)]
Bias = Annotated[Float, Field(ge=-100.0, le=100.0)]
TokenLimit = Annotated[Int, Field(ge=1)]


class SamplingRequest(WireModel):
    """A request for generated text, whatever its prompt looks like."""

    model: Nullable[str] = DEFAULT_MODEL
    temperature: Nullable[Annotated[Float, Field(ge=0.0, le=2.0)]] = 1.0
    top_p: Nullable[Annotated[Float, Field(ge=0.0, le=1.0)]] = 1.0
    top_k: Nullable[Annotated[Int, Field(ge=-1)]] = 50
    min_p: Nullable[Annotated[Float, Field(ge=0.0, le=1.0)]] = 0.0
    min_tokens: Nullable[Annotated[Int, Field(ge=0)]] = 0
    stream: Nullable[Bool] = False
    stop: str | list[Any] | None = None
    stop_token_ids: Nullable[list[Int]] = Field(default_factory=list)
    ignore_eos: Nullable[Bool] = False
    presence_penalty: Nullable[Penalty] = 0.0
    frequency_penalty: Nullable[Penalty] = 0.0
    repetition_penalty: Nullable[Annotated[Float, Field(gt=0.0)]] = 1.0
    logit_bias: Nullable[dict[int, Bias]] = Field(default_factory=dict)
    seed: Int64 | None = None
    user: str | None = None
    cache_salt: str | None = None


class StreamOptions(WireModel):
    """What a stream carries besides text."""

    include_usage: Nullable[Bool] = False


def sampling_fields(
    request: SamplingRequest, context: RequestContext, engine: EngineClient
) -> dict[str, Any]:
    """The keywords of a ``GenerationRequest`` that the common parameters stand for.

    Raises:
        ApiError: 400, for a bad stop string.
    """
    fields = {
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "min_tokens": request.min_tokens,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repetition_penalty": request.repetition_penalty,
        "rep_window": None,
        "logit_bias": request.logit_bias or None,
        "seed": request.seed,
        "stop": stop_strings(request.stop, "stop"),
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": request.ignore_eos,
        "stream": request.stream,
        "cache_salt": request.cache_salt or context.cache_salt,
        "deadline": context.deadline,
        "request_id": context.request_id,
    }
    return fields | model_defaults(request, engine)
