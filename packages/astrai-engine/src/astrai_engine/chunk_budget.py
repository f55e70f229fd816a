"""How much of a prompt may join a step in which streams decode.

A chunk makes every stream's next token late, so it is sized by time: a mixed step may take
``max_stretch`` times as long as a step that only decodes.
"""

_WEIGHT = 0.2
_UNKNOWN_TOKENS = 32


class ChunkBudget:
    """Learns what steps cost and gives the number of prompt tokens that fits.

    Args:
        max_tokens: never more than this.
        min_tokens: never less, so that prompts always advance. Not 1: a chunk of one token would
            run as a decoding row, whose kernel rounds differently.
        max_stretch: how much longer than a decoding step a mixed one may take.
    """

    def __init__(self, max_tokens: int, *, min_tokens: int = 2, max_stretch: float = 2.5) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = min(min_tokens, max_tokens)
        self._max_stretch = max_stretch
        self._seconds_per_decode: float | None = None
        self._seconds_per_token: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt tokens that may join the next decoding step."""
        if self._seconds_per_decode is None or self._seconds_per_token is None:
            return min(_UNKNOWN_TOKENS, self._max_tokens)
        spare = (self._max_stretch - 1.0) * self._seconds_per_decode
        return min(max(int(spare / self._seconds_per_token), self._min_tokens), self._max_tokens)

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            num_decoding: sequences that decoded in it.
            num_prompt_tokens: prompt tokens that ran beside them.
            seconds: how long it took.
        """
        if num_prompt_tokens == 0:
            self._seconds_per_decode = _average(self._seconds_per_decode, seconds)
            return
        alone = (self._seconds_per_decode or 0.0) if num_decoding else 0.0
        per_token = max(seconds - alone, 0.1 * seconds) / num_prompt_tokens
        self._seconds_per_token = _average(self._seconds_per_token, per_token)


def _average(known: float | None, value: float) -> float:
    return value if known is None else known + _WEIGHT * (value - known)
