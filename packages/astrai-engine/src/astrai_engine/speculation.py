"""How many guessed tokens a step checks: as many as are worth what they cost.

A sequence that decodes needs one token a step. Guesses of what comes after it can run in the same
step: those that turn out right are tokens gained, and every one costs its part of the step. It
costs the sequences beside it too, which wait longer for their token, so that has a limit.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Batch
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from astrai_engine.prompt_lookup import PromptLookup
from astrai_engine.sequence import Sequence

MAX_DRAFT_TOKENS = 10
"""Guesses for one sequence in one step."""

_MARGIN = 1.2
"""How much more than its cost a guess has to be worth, as both are estimates."""

_MAX_STRETCH = 1.5
"""How much longer guesses may make a step for sequences that have none worth checking."""


class StepCost:
    """What a step takes, by its number of tokens: measured at some, interpolated in between.

    The first tokens are nearly free, as a step reads all weights anyway; from some number on, each
    costs its full share. So the last two measurements count for whatever is larger.

    Args:
        seconds: of a step of so many tokens, for two numbers at least.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._pieces = [
            (low, seconds[low], max(seconds[high] - seconds[low], 0.0) / (high - low))
            for low, high in pairwise(sorted(seconds))
        ]

    def is_worth(self, chance: float, num_tokens: int, num_expected: float) -> bool:
        """Whether one more token makes the tokens of a step cheaper.

        Args:
            chance: that it will be of use.
            num_tokens: those that run already.
            num_expected: those of them that will be of use.
        """
        low, seconds, per_token = self._piece(num_tokens)
        so_far = seconds + (num_tokens - low) * per_token
        return chance * so_far > _MARGIN * per_token * num_expected

    def num_fitting(self, num_tokens: int, stretch: float) -> float:
        """How many more tokens make a step take at most ``stretch`` times as long."""
        low, seconds, per_token = self._piece(num_tokens)
        if per_token == 0.0:
            return inf
        so_far = seconds + (num_tokens - low) * per_token
        return (stretch - 1.0) * so_far // per_token

    def _piece(self, num_tokens: int) -> tuple[int, float, float]:
        """A number of tokens, what they take, and what each takes that is added to them."""
        for piece in reversed(self._pieces):
            if piece[0] <= num_tokens:
                return piece
        return self._pieces[0]


FREE = StepCost({1: 1.0, 2: 1.0})
"""The cost to assume where every guess is to be checked."""


class _Candidate(NamedTuple):
    """A sequence with a guess, and how many it has use for."""

    lookup: PromptLookup
    max_tokens: int


class Speculation:
    """Drafts tokens for the sequences of a step.

    Args:
        cost: of a step.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost

    def has_room(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens, or more, is the better for one that is certain."""
        return self._cost.is_worth(1.0, num_tokens, num_tokens)

    def draft(self, sequences: Batch[Sequence], *, num_tokens: int, budget: int) -> list[list[int]]:
        """Choose the guesses to check.

        A sequence with a grammar gets none: what its grammar allows is known for one token only.

        Args:
            sequences: those that decode in the step.
            num_tokens: tokens of the step so far, those of other sequences included.
            budget: guesses that may join it.

        Returns:
            One draft for each sequence, empty where none is worth its cost.
        """
        drafts: list[list[int]] = [[] for _ in sequences]
        if not self.has_room(num_tokens):
            return drafts
        candidates = self._candidates(sequences, num_tokens)
        if len(candidates) < num_tokens:
            budget = int(min(budget, self._cost.num_fitting(num_tokens, _MAX_STRETCH)))
        for row, length in self._lengths(candidates, num_tokens, budget).items():
            drafts[row] = candidates[row].lookup.draft(length)
        return drafts

    def _candidates(self, sequences: Batch[Sequence], num_tokens: int) -> dict[int, _Candidate]:
        """The rows whose first guess is worth checking."""
        candidates = {}
        for row, sequence in enumerate(sequences):
            candidate = _candidate(sequence)
            if candidate is not None and self._cost.is_worth(
                candidate.lookup.chance, num_tokens, num_tokens
            ):
                candidates[row] = candidate
        return candidates

    def _lengths(
        self, candidates: dict[int, _Candidate], num_tokens: int, budget: int
    ) -> dict[int, int]:
        """Take the likeliest guess of all again and again; a guess needs all before it right."""
        lengths: dict[int, int] = {}
        expected = float(num_tokens)
        likeliest = [(-candidate.lookup.chance, row) for row, candidate in candidates.items()]
        heapify(likeliest)
        while likeliest and budget:
            chance, row = -likeliest[0][0], likeliest[0][1]
            if not self._cost.is_worth(chance, num_tokens, expected):
                break
            lengths[row] = lengths.get(row, 0) + 1
            num_tokens, expected, budget = num_tokens + 1, expected + chance, budget - 1
            if lengths[row] < candidates[row].max_tokens:
                heapreplace(likeliest, (-chance * candidates[row].lookup.chance, row))
            else:
                heappop(likeliest)
        return lengths


def _candidate(sequence: Sequence) -> _Candidate | None:
    if sequence.constraint is not None:
        return None
    if sequence.lookup is None:
        sequence.lookup = PromptLookup(sequence.token_ids, sequence.num_prompt_tokens)
    sequence.lookup.read()
    # Behind the last token that it may generate, a guess is of no use.
    max_tokens = min(MAX_DRAFT_TOKENS, sequence.max_tokens - sequence.num_generated - 1)
    if not sequence.lookup.has_guess or max_tokens < 1:
        return None
    return _Candidate(sequence.lookup, max_tokens)
