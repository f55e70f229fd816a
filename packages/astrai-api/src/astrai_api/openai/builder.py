"""Chat completions: ``POST /v1/chat/completions``."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, openai_error
from astrai_api.openai.logprobs import chat_logprobs
from astrai_api.openai.messages import template_messages
from astrai_api.openai.refusals import check_supported
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.sse import DONE, encode_event
from astrai_api.stops import stop_strings
from astrai_engine.events import FinishReason, TokenDelta, TokenLogprob, Usage
from astrai_engine.request import GenerationRequest

_FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Chat completions, whole or as chunks."""

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def prepare(self, request: ChatCompletionRequest, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request.

        Raises:
            ApiError: an unknown model, or something this server cannot do.
            InvalidRequestError: a combination of values that makes no sense.
        """
        self.context.models.check(request.model, engine)
        check_supported(request)
        self._request = request
        return GenerationRequest(
            messages=template_messages(request.messages),
            chat_template_kwargs=request.chat_template_kwargs,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            max_tokens=request.token_limit,
            min_tokens=request.min_tokens,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            repetition_penalty=request.repetition_penalty,
            rep_window=None,
            logit_bias=request.logit_bias or None,
            seed=request.seed,
            stop=stop_strings(request.stop, "stop"),
            stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            n=request.n,
            stream=request.stream,
            cache_salt=request.cache_salt or self.context.cache_salt,
            deadline=self.context.deadline,
            request_id=self.context.request_id,
        )

    def format_stream_start(self, usage: Usage) -> bytes:  # noqa: ARG002 (counts come last)
        """The role of every choice."""
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, delta) for index in range(self._request.n))

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text of one choice."""
        if not delta.text and not delta.logprobs:
            return b""
        return self._chunk(delta.index, {"content": delta.text}, logprobs=delta.logprobs)

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The finish reason of every choice, the usage line, and ``[DONE]``."""
        finishes = [
            self._chunk(choice.index, {}, finish_reason=_FINISH_REASONS[choice.end.reason])
            for choice in choices
        ]
        return b"".join([*finishes, self._usage_line(total_usage(choices)), DONE])

    def format_stream_error(self, error: ApiError) -> bytes:
        """The error event, and ``[DONE]``."""
        return encode_event({"error": openai_error(error)}) + DONE

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The ``chat.completion`` object."""
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": _FINISH_REASONS[choice.end.reason],
                }
                for choice in choices
            ],
            "usage": _usage(total_usage(choices)),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._request.stream_options.include_usage:
            chunk["usage"] = None
        return encode_event(chunk)

    def _usage_line(self, usage: Usage) -> bytes:
        """One object for both readers: those of the counts at the top, and those of a chunk.

        Clients that did not ask for usage index ``choices[0]`` of every chunk; those that asked
        expect no choice in this one.
        """
        empty = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        counts = _usage(usage)
        line = {
            **self._head("chat.completion.chunk"),
            "choices": [] if self._request.stream_options.include_usage else [empty],
            "usage": counts,
            "prompt_tokens": counts["prompt_tokens"],
            "completion_tokens": counts["completion_tokens"],
            "total_tokens": counts["total_tokens"],
        }
        return encode_event(line)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries) if self._request.logprobs else None


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
