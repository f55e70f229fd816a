"""Bringing structured text to its end in time: near ``max_tokens`` it is closed, not cut."""

import re
from collections.abc import Callable, Collection
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.bool_]
"""A boolean for each token of a vocabulary, shape ``[vocab]``."""

_SLACK = 16
"""Tokens more than the shortest text takes: quotes and brackets that are open by then."""

_MAX_STEPS = 256

_BRACKETS = re.compile(rb"[\]})]+")
_QUOTES = re.compile(rb"\"[\]})]*")
_COMMAS = re.compile(rb"[\]})]*,.*", re.DOTALL)
_LETTERS = re.compile(rb"[G-MO-SU-Z]+")
"""Letters that only a string has: no number, and no constant of JSON or Python."""


class Closers:
    """Which tokens of a vocabulary bring JSON, and calls made of it, to their end.

    Args:
        token_bytes: gives the text of a token.
        eos_token_ids: tokens that end the text.
        vocab_size: how many tokens there are.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        eos_token_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        texts = [token_bytes(token_id) for token_id in range(vocab_size)]
        self._ends: Tokens = np.zeros(vocab_size, dtype=np.bool_)
        self._ends[list(eos_token_ids)] = True
        brackets, self._quotes, commas, self._letters = (
            np.array([pattern.fullmatch(text) is not None for text in texts], dtype=np.bool_)
            for pattern in (_BRACKETS, _QUOTES, _COMMAS, _LETTERS)
        )
        self._tiers = (brackets, self._quotes, commas)

    def end(self, allowed: Tokens) -> bool:
        """Where the text may end, let it: keep no other token. Gives whether it may."""
        may_end = bool((allowed & self._ends).any())
        if may_end:
            allowed &= self._ends
        return may_end

    def close(self, allowed: Tokens) -> bool:
        """Keep only tokens that lead to the end of the text, if any do.

        Args:
            allowed: what the grammar allows; changed in place.

        Returns:
            Whether that may have cut something short.
        """
        if self.end(allowed):
            return False
        is_string = bool((allowed & self._letters).any())
        for tier in (self._quotes,) if is_string else self._tiers:
            kept = allowed & tier
            if kept.any():
                is_cut = bool((allowed & ~tier).any())
                allowed &= tier
                return is_cut
        return False

    def tokens_needed(self, matcher: LLMatcher) -> int | None:
        """How many tokens near its end a text has to be closed with; None for too many to try.

        Args:
            matcher: at the beginning of the grammar; left as it is.
        """
        probe = matcher.deep_copy()
        for num_tokens in range(_MAX_STEPS):
            if probe.is_stopped():
                return num_tokens + _SLACK
            bits = np.frombuffer(probe.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[: len(self._ends)].view(np.bool_)
            self.close(allowed)
            if not probe.consume_token(int(allowed.argmax())):
                return None
        return None
