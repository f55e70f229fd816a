"""How much of a prompt may join a step in which streams decode.

A chunk makes every stream's next token late, so it is sized by time: a mixed step may take
``max_stretch`` times as long as a step that only decodes, or as long as nobody notices.
"""

_DOWN, _UP = 0.2, 0.5
_FIRST_TOKENS = 8
_MIXED_STEPS = 16
_UNNOTICED_SECONDS = 0.04
"""25 tokens a second read as a steady stream; a few fast ones need not hold all prompts up."""


class ChunkBudget:
    """Learns what steps cost and gives the number of prompt tokens that fits.

    What a token costs depends on the size of its chunk and on the context, so a chunk is at most
    twice the one before it, and bad news counts for more than good news. While prompts last, one
    step in a while goes without, to see what decoding alone has come to cost.

    Args:
        max_tokens: never more than this.
        min_tokens: never less when prompts may run, so that they advance. Not 1: a chunk of one
            token would run as a decoding row, whose kernel rounds differently.
        max_stretch: how much longer than a decoding step a mixed one may take.
    """

    def __init__(self, max_tokens: int, *, min_tokens: int = 2, max_stretch: float = 2.25) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = min(min_tokens, max_tokens)
        self._max_stretch = max_stretch
        self._seconds_per_decode: float | None = None
        self._seconds_per_token: float | None = None
        self._last_tokens = _FIRST_TOKENS // 2
        self._num_mixed = 0

    @property
    def tokens(self) -> int:
        """Prompt tokens that may join the next decoding step; 0 when it is to go without."""
        if self._num_mixed >= _MIXED_STEPS:
            return 0
        wanted = _FIRST_TOKENS
        if self._seconds_per_decode is not None and self._seconds_per_token is not None:
            longest = max(self._max_stretch * self._seconds_per_decode, _UNNOTICED_SECONDS)
            spare = longest - self._seconds_per_decode
            wanted = min(2 * self._last_tokens, int(spare / self._seconds_per_token))
        return min(max(wanted, self._min_tokens), self._max_tokens)

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            num_decoding: sequences that decoded in it.
            num_prompt_tokens: prompt tokens that ran beside them.
            seconds: how long it took.
        """
        if num_prompt_tokens == 0:
            if self._num_mixed < _MIXED_STEPS:
                self._last_tokens = _FIRST_TOKENS // 2
            self._num_mixed = 0
            self._seconds_per_decode = _average(self._seconds_per_decode, seconds)
            return
        alone = 0.0
        if num_decoding:
            self._num_mixed += 1
            self._last_tokens = num_prompt_tokens
            alone = self._seconds_per_decode or 0.0
        per_token = max(seconds - alone, 0.1 * seconds) / num_prompt_tokens
        self._seconds_per_token = _average(self._seconds_per_token, per_token)


def _average(known: float | None, value: float) -> float:
    if known is None:
        return value
    return known + (_UP if value > known else _DOWN) * (value - known)
