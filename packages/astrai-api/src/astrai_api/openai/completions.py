"""Text completions: ``POST /v1/completions``."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from astrai_api.answer_shape import AnswerShape
from astrai_api.builder import Choice, RequestContext, ResponseBuilder, total_usage
from astrai_api.client import EngineClient
from astrai_api.errors import ApiError, bad_request
from astrai_api.openai.answers import Completion
from astrai_api.openai.chunks import ChunkFormat
from astrai_api.openai.completion_schemas import CompletionRequest
from astrai_api.openai.echo import Echo
from astrai_api.openai.endings import FINISH_REASONS, usage_counts
from astrai_api.openai.logprobs import CompletionLogprobs
from astrai_api.openai.refusals import check_completion
from astrai_api.openai.sampling import sampling_fields
from astrai_api.openai.structured_output import requested_output
from astrai_api.sse import DONE
from astrai_api.stream_errors import openai_stream_error
from astrai_engine.events import Finished, PromptLogprobs, TokenDelta, Usage
from astrai_engine.request import MAX_CHOICES, GenerationRequest


class CompletionResponseBuilder(ResponseBuilder[CompletionRequest]):
    """Completions of one prompt or several, whole or as chunks.

    Choices are numbered prompt by prompt: ``n`` of the first, then ``n`` of the next.
    """

    answer = Completion

    def __init__(self, context: RequestContext | None = None) -> None:
        super().__init__(context)
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._echoes: list[Echo] = []
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def prepare(self, request: CompletionRequest, engine: EngineClient) -> GenerationRequest:
        """Translate the wire request, for the first of its prompts.

        Raises:
            ApiError: an unknown model, or something this server cannot do.
            InvalidRequestError: a combination of values that makes no sense.
        """
        self.context.models.check(request.model, engine)
        check_completion(request)
        if len(request.prompts) * request.n > MAX_CHOICES:
            raise bad_request(
                f"prompt: {len(request.prompts)} prompts with n={request.n} make more than "
                f"{MAX_CHOICES} choices; send them in several requests.",
                param="prompt",
            )
        self._request = request
        output = requested_output(request, "response_format", request.response_format)
        self.shape = AnswerShape(output=output)
        self._chunks = ChunkFormat(
            self._head(),
            text_fields=lambda text: {"text": text},
            empty_fields={"text": ""},
            include_usage=request.stream_options.include_usage,
        )
        return GenerationRequest(
            **sampling_fields(request, self.context, engine),
            **_prompt_field(request.prompts[0]),
            **self.shape.request_fields(),
            max_tokens=request.max_tokens,
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs or 0,
            prompt_logprobs=(request.logprobs or 0) if self._scores_prompt else None,
            n=request.n,
        )

    async def plan(
        self, request: CompletionRequest, engine: EngineClient
    ) -> Sequence[GenerationRequest]:
        """One generation for each prompt."""
        first = self.prepare(request, engine)
        prompts = request.prompts
        if request.echo:
            tokenise = partial(Echo.of, tokenizer=engine.tokenizer)
            self._echoes = await asyncio.to_thread(lambda: list(map(tokenise, prompts)))
            prompts = [echo.token_ids for echo in self._echoes]
        unset = {"prompt": None, "prompt_token_ids": None}
        return [replace(first, **{**unset, **_prompt_field(prompt)}) for prompt in prompts]

    def format_stream_start(self, usage: Usage) -> bytes:  # noqa: ARG002 (counts come last)
        """The prompts, if they are repeated and there is nothing else to tell of them."""
        if self._scores_prompt:
            return b""
        return b"".join(self._echo_chunks(number) for number in range(len(self._echoes)))

    def format_prompt(self, prompt: PromptLogprobs) -> bytes:
        """The prompt of some choices, with its log-probabilities if they were asked for."""
        return self._echo_chunks(prompt.index // self._request.n, prompt)

    def format_chunk(self, delta: TokenDelta) -> bytes:
        """New text of one choice."""
        if not delta.text and not delta.logprobs:
            return b""
        if self._request.logprobs is None:
            return self._chunks.text(delta.index, delta.text)
        logprobs = self._logprobs_of(delta.index)
        logprobs.add(delta.logprobs)
        return self._chunks.text(delta.index, delta.text, logprobs.take())

    def format_stream_end(self, choices: Sequence[Choice]) -> bytes:
        """The finish reason of every choice, the usage line, and ``[DONE]``."""
        finishes = [self._finish(choice.index, choice.end) for choice in choices]
        counts = usage_counts(total_usage(choices, len(self._request.prompts)))
        return b"".join([*finishes, self._chunks.usage_line(counts), DONE])

    def format_stream_error(self, error: ApiError) -> bytes:
        """The error event, and ``[DONE]``."""
        return openai_stream_error(error)

    def format_response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The ``text_completion`` object."""
        n = self._request.n
        return {
            **self._head(),
            "choices": [
                self._whole(choice, choices[choice.index - choice.index % n].prompt)
                for choice in choices
            ],
            "usage": usage_counts(total_usage(choices, len(self._request.prompts))),
        }

    @property
    def _scores_prompt(self) -> bool:
        """Whether the prompt has to run by itself: for its probabilities, or for nothing else."""
        request = self._request
        return request.echo and (request.logprobs is not None or request.max_tokens == 0)

    def _echo_chunks(self, number: int, prompt: PromptLogprobs | None = None) -> bytes:
        n, echo = self._request.n, self._echoes[number]
        frames = []
        for index in range(number * n, (number + 1) * n):
            logprobs = None
            if prompt is not None and self._request.logprobs is not None:
                echo.add_to(self._logprobs_of(index), prompt)
                logprobs = self._logprobs_of(index).take()
            frames.append(self._chunks.text(index, echo.text, logprobs))
        return b"".join(frames)

    def _whole(self, choice: Choice, prompt: PromptLogprobs | None) -> dict[str, Any]:
        echo = self._echo_of(choice.index)
        shown = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs_of(choice.index)
            if echo is not None and prompt is not None:
                echo.add_to(logprobs, prompt)
            logprobs.add(choice.logprobs)
            logprobs.add(choice.end.logprobs)
            shown = logprobs.take()
        return {
            "index": choice.index,
            "text": (echo.text if echo else "") + choice.text,
            "logprobs": shown,
            "finish_reason": FINISH_REASONS[choice.end.reason],
        }

    def _finish(self, index: int, end: Finished) -> bytes:
        logprobs = self._logprobs_of(index)
        logprobs.add(end.logprobs)
        rest = logprobs.take()
        shown = rest if rest["tokens"] else None
        return self._chunks.finish(index, FINISH_REASONS[end.reason], shown)

    def _logprobs_of(self, index: int) -> CompletionLogprobs:
        found = self._logprobs.get(index)
        if found is None:
            echo = self._echo_of(index)
            found = self._logprobs[index] = CompletionLogprobs(echo.surplus if echo else 0)
        return found

    def _echo_of(self, index: int) -> Echo | None:
        return self._echoes[index // self._request.n] if self._echoes else None

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._request.model,
        }


def _prompt_field(prompt: str | list[int]) -> dict[str, Any]:
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}
