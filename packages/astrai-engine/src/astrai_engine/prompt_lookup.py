"""Guesses of the next tokens, taken from what followed the same tokens earlier in a sequence.

Text that is edited, quoted or summarised comes again word for word, so what came after its last
few tokens before is a good guess at what comes now. No second model is needed.

Source: Saxena, Prompt Lookup Decoding.
"""

_NGRAM = 3
"""Tokens that have to be the same. Fewer find more, and are right less often."""

_FIRST_CHANCE = 0.5
_WEIGHT = 0.1
_READ_AT_ONCE = 4096
"""Tokens read in one call, about two milliseconds of them."""


class PromptLookup:
    """Follows one sequence as it grows, and guesses how it goes on.

    Each token that comes is compared with the guess, whether or not anybody asked for a draft: how
    good the guesses are is known before they cost anything.

    Args:
        token_ids: prompt and output; the list that grows, not a copy of it.
        num_prompt_tokens: how many of them are the prompt, which nobody has to guess.

    Attributes:
        chance: how often the guesses of late were right, between 0 and 1.
    """

    def __init__(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        self.chance = _FIRST_CHANCE
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._num_read = 0
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the place behind its last one
        self._guess: int | None = None  # the place whose token is expected to come again

    @property
    def has_guess(self) -> bool:
        """Whether :meth:`draft` has something to give."""
        return self._guess is not None and self._num_read == len(self._token_ids)

    def read(self) -> None:
        """Take in the tokens that have come since; a long prompt takes several calls."""
        token_ids, after = self._token_ids, self._after
        first = self._num_read
        self._num_read = min(len(token_ids), first + _READ_AT_ONCE)
        for place in range(first, self._num_read):
            if place < self._num_prompt_tokens:
                self._guess = None
            elif self._guess is not None:
                self._compare(token_ids[place])
            ngram = tuple(token_ids[max(place + 1 - _NGRAM, 0) : place + 1])
            if self._guess is None:
                self._guess = after.get(ngram)
            after[ngram] = place + 1

    def draft(self, num_tokens: int) -> list[int]:
        """The next ``num_tokens`` tokens, if the guess is right; there has to be one."""
        assert self._guess is not None
        draft = self._token_ids[self._guess : self._guess + num_tokens]
        period = len(draft)
        while len(draft) < num_tokens:  # the guess reaches the end: the text repeats itself
            draft.append(draft[-period])
        return draft

    def _compare(self, token_id: int) -> None:
        """Learn from a token that was guessed, and follow the guess if it was right."""
        assert self._guess is not None
        is_right = self._token_ids[self._guess] == token_id
        self.chance += _WEIGHT * (is_right - self.chance)
        self._guess = self._guess + 1 if is_right else None
