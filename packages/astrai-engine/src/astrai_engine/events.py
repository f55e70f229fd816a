"""What a request sends back while it runs: the contract between engine and callers."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from astrai_engine.errors import AstraiError


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the context was reached."""
    TOOL_CALLS = "tool_calls"
    """The model called a tool."""
    ABORTED = "aborted"
    """The caller went away or asked for it."""
    ERROR = "error"
    """The generation failed; the event is ``Failed``."""


class Usage(NamedTuple):
    """Token counts of one choice.

    Attributes:
        prompt_tokens: all tokens of the prompt.
        cached_tokens: the part of the prompt whose K/V came from the prefix cache.
        completion_tokens: tokens generated so far, the end-of-sequence token included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """When what happened to one choice, in seconds on the clock of ``time.monotonic``.

    Attributes:
        submitted_at: it came to the engine, and waited.
        started_at: its prompt began to be computed; None if it never was.
        first_token_at: its first token was there; None if none ever was.
        ended_at: it was over.
    """

    submitted_at: float
    started_at: float | None
    first_token_at: float | None
    ended_at: float


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position: a natural logarithm of the raw distribution."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token at a position, and its most likely alternatives, likeliest first."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model thought of the prompt; comes first, and only if it was asked for.

    Attributes:
        entries: one for each prompt token; None for the first, which nothing predicts.
        usage: the counts so far.
        index: always 0: all choices have the same prompt.
    """

    entries: tuple[TokenLogprob | None, ...]
    usage: Usage
    index: int = 0


@dataclass(slots=True)  # not frozen: that would triple what making one costs, once a token
class TokenDelta:
    """New text of one choice.

    Attributes:
        text: text that is final; it never holds part of a stop string or of a character.
        token_ids: the tokens generated since the last delta of this choice. Their text may
            still be held back, or cut by a stop string.
        usage: the counts so far.
        index: which of the ``n`` choices.
        logprobs: entries for the tokens whose text is in ``text``, and for control tokens, which
            have no bytes; empty unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of one choice.

    Attributes:
        reason: why it ended.
        usage: the final counts.
        index: which of the ``n`` choices.
        stop: the stop string that matched, or None.
        logprobs: entries for the tokens behind the text: control tokens, and the end-of-sequence
            or stop token that ended it; empty unless asked for.
        timing: when it went through its phases; None from engines that do not tell.
    """

    reason: FinishReason
    usage: Usage
    index: int = 0
    stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    timing: Timing | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a choice that could not be completed.

    Attributes:
        error: why.
        index: which of the ``n`` choices.
        timing: as that of `Finished`.
    """

    error: AstraiError
    index: int = 0
    timing: Timing | None = field(default=None, compare=False)


Event: TypeAlias = PromptLogprobs | TokenDelta | Finished | Failed
