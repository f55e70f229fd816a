"""What a caller asks for: one generation request, checked when it is made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import Grammar

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
_INT64 = 2**63


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One request, in the engine's own terms.

    Exactly one of ``messages``, ``prompt`` and ``prompt_token_ids`` is given. A raw prompt is
    tokenised with the model's special tokens; a rendered chat without adding any.

    Attributes:
        messages: chat messages, each with ``role`` and ``content``.
        prompt: raw text.
        prompt_token_ids: token ids, taken as they are.
        tools: tool definitions handed to the chat template.
        chat_template_kwargs: extra variables handed to the chat template.
        continue_final_message: the last message is the beginning of the answer.
        temperature: 0 is greedy.
        top_k: 0 or -1 turns the filter off.
        top_p: nucleus threshold; 1 turns it off and 0 keeps only the likeliest token.
        min_p: smallest probability kept, relative to the likeliest token's.
        max_tokens: most tokens to generate; None is the rest of the context. Always clamped to
            the context.
        min_tokens: end-of-sequence and stops are ignored before this many tokens.
        frequency_penalty: taken from a token's logit for each time it was generated within
            ``rep_window``.
        presence_penalty: taken once if the token was generated within ``rep_window``.
        repetition_penalty: divides positive and multiplies negative logits of every token in
            prompt and output; 1 is off.
        rep_window: how many of the last generated tokens the penalties look at; None is all.
        logit_bias: token id to a number added to its logit.
        seed: makes the draw repeatable, whatever else is in the batch.
        stop: strings that end the generation and are not part of the text.
        grammar: what the text has to look like, enforced while sampling. The generation ends
            when the text is whole and nothing can follow; ``ignore_eos`` and ``min_tokens`` have
            no say in it.
        stop_token_ids: token ids that end the generation.
        visible_special_tokens: special tokens, by their text, that the generated text shows;
            those that end it never do, and texts that are no special token change nothing.
        ignore_eos: go on after an end-of-sequence token.
        logprobs: report the log-probability of each generated token.
        top_logprobs: how many alternatives to report with it.
        prompt_logprobs: report the log-probability of each prompt token, with this many
            alternatives; None does not. The prompt is then computed whole, without the prefix
            cache.
        n: number of choices.
        stream: kept for callers that choose a form by it; events always stream.
        priority: lower runs first; a higher number counts as having arrived later, so it waits
            longer but not for ever.
        cache_salt: requests with different salts never share cached prefixes.
        deadline: ``time.monotonic()`` value after which the request fails.
        queue_timeout: seconds it may wait before it first runs; None is no limit.
        request_id: a caller's own id, for logs; uniqueness is not required.

    Raises:
        InvalidRequestError: a value is out of its range; ``param`` names it.
    """

    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    rep_window: int | None = 64
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    stop_token_ids: Sequence[int] = ()
    visible_special_tokens: Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    n: int = 1
    stream: bool = False
    priority: int = 0
    cache_salt: str | None = None
    deadline: float | None = None
    queue_timeout: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        given = [p is not None for p in (self.messages, self.prompt, self.prompt_token_ids)]
        if sum(given) != 1:
            raise InvalidRequestError(
                "Give exactly one of messages, prompt and prompt_token_ids.", param="messages"
            )
        if self.messages is not None and not self.messages:
            raise InvalidRequestError(
                "messages: at least one message is required.", param="messages"
            )
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        self._check_ranges()

    def _check_ranges(self) -> None:
        _in_range("temperature", self.temperature, 0.0, math.inf)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("top_k", self.top_k, -1, math.inf)
        _in_range("n", self.n, 1, MAX_CHOICES)
        _in_range("min_tokens", self.min_tokens, 0, math.inf)
        _in_range("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InvalidRequestError(
                f"repetition_penalty must be above 0, not {self.repetition_penalty}.",
                param="repetition_penalty",
            )
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 0, math.inf)
        if self.rep_window is not None:
            _in_range("rep_window", self.rep_window, 0, math.inf)
        if self.prompt_logprobs is not None:
            _in_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.queue_timeout is not None:
            _in_range("queue_timeout", self.queue_timeout, 0.0, math.inf)
        if self.seed is not None:
            _in_range("seed", self.seed, -_INT64, _INT64 - 1)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs.", param="top_logprobs")
        for token_id, bias in (self.logit_bias or {}).items():
            if not math.isfinite(bias):
                raise InvalidRequestError(
                    f"logit_bias of token {token_id} must be a finite number.", param="logit_bias"
                )


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high) or math.isinf(value):
        bounds = f"at least {low}" if math.isinf(high) else f"between {low} and {high}"
        raise InvalidRequestError(f"{name} must be {bounds}, not {value}.", param=name)


def _stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(stops)}.", param="stop"
        )
    if not all(isinstance(s, str) and s for s in stops):
        raise InvalidRequestError("stop strings must be non-empty text.", param="stop")
    return stops
