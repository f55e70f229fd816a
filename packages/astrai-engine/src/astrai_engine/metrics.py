"""Counters of an engine. Written by its one loop thread, read by anyone."""

from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from astrai_engine.events import FinishReason
from astrai_engine.sequence import Sequence

_RATE_SECONDS = 10.0
_WEIGHT = 0.1


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started; every one only grows, unless it says otherwise.

    Attributes:
        requests: choices that were submitted.
        finished: choices that ended, by reason.
        prompt_tokens: tokens of prompts that were admitted.
        cached_tokens: the part of them reused from the prefix cache.
        generated_tokens: tokens generated.
        drafted_tokens: guesses of tokens that were checked.
        accepted_tokens: the part of them that was right.
        steps: forward passes run.
        first_tokens: choices that got their first token.
        first_token_seconds: time from submission to the first token, summed over them.
        seconds_per_request: how long one choice takes at present; a moving average.
    """

    requests: int = 0
    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    seconds_per_request: float = 1.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def note_step(self, num_tokens: int) -> None:
        """Count a forward pass and the tokens it generated."""
        now = monotonic()
        self.steps += 1
        self.generated_tokens += num_tokens
        self._recent.append((now, num_tokens))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def note_first_token(self, sequence: Sequence) -> None:
        """Count the time a choice waited for its first token, which is there now."""
        self.first_tokens += 1
        sequence.first_token_at = monotonic()
        self.first_token_seconds += sequence.first_token_at - sequence.submitted_at

    def note_draft(self, num_drafted: int, num_accepted: int) -> None:
        """Count guesses that were checked, and those of them that were right."""
        self.drafted_tokens += num_drafted
        self.accepted_tokens += num_accepted

    def note_finished(self, reason: FinishReason, sequence: Sequence, seconds: float) -> None:
        """Count a choice that ended ``seconds`` after it was submitted."""
        self.finished[reason] += 1
        if sequence.num_cached is not None:
            self.prompt_tokens += sequence.num_prompt_tokens
            self.cached_tokens += sequence.num_cached
        self.seconds_per_request += _WEIGHT * (seconds - self.seconds_per_request)

    @property
    def tokens_per_second(self) -> float:
        """Tokens generated in the last ten seconds, a second."""
        horizon = monotonic() - _RATE_SECONDS
        recent = list(self._recent)
        return sum(num_tokens for at, num_tokens in recent if at >= horizon) / _RATE_SECONDS
