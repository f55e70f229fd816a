"""How many guessed tokens a step checks: as many as are worth what they cost.

A sequence that decodes needs one token a step. Guesses of what comes after it can run in the same
step: those that turn out right are tokens gained, and every one costs its part of the step. It
costs the sequences beside it too, which wait longer for their token, so that has a limit.
"""

from collections.abc import Sequence as Batch
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf

from astrai_engine.prompt_lookup import PromptLookup
from astrai_engine.sequence import Sequence

MAX_DRAFT_TOKENS = 10
"""Guesses for one sequence in one step."""

_MARGIN = 1.2
"""How much more than its cost a guess has to be worth, as both are estimates."""

_MAX_STRETCH = 1.5
"""How much longer guesses may make a step for sequences that have none worth checking."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step takes: ``fixed + per_token * tokens`` seconds.

    Attributes:
        fixed: whatever runs in it; mostly for reading the weights.
        per_token: more for each token.
    """

    fixed: float
    per_token: float

    def is_worth(self, chance: float, num_tokens: int, num_expected: float) -> bool:
        """Whether one more token makes the tokens of a step cheaper.

        Args:
            chance: that it will be of use.
            num_tokens: those that run already.
            num_expected: those of them that will be of use.
        """
        return chance * self._seconds(num_tokens) > _MARGIN * self.per_token * num_expected

    def num_fitting(self, num_tokens: int, stretch: float) -> float:
        """How many more tokens make a step take at most ``stretch`` times as long."""
        if self.per_token == 0.0:
            return inf
        return (stretch - 1.0) * self._seconds(num_tokens) // self.per_token

    def _seconds(self, num_tokens: int) -> float:
        return self.fixed + self.per_token * num_tokens


FREE = StepCost(fixed=1.0, per_token=0.0)
"""The cost to assume where every guess is to be checked."""


class Speculation:
    """Drafts tokens for the sequences of a step.

    Args:
        cost: of a step.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost

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
        limits: dict[int, int] = {}
        chances: dict[int, float] = {}
        for row, sequence in enumerate(sequences):
            limit = _limit(sequence)
            if limit > 0 and self._cost.is_worth(_lookup(sequence).chance, num_tokens, num_tokens):
                limits[row], chances[row] = limit, _lookup(sequence).chance
        if len(limits) < num_tokens:
            budget = int(min(budget, self._cost.num_fitting(num_tokens, _MAX_STRETCH)))
        for row, length in self._lengths(chances, limits, num_tokens, budget).items():
            drafts[row] = _lookup(sequences[row]).draft(length)
        return drafts

    def _lengths(
        self, chances: dict[int, float], limits: dict[int, int], num_tokens: int, budget: int
    ) -> dict[int, int]:
        """Take the likeliest guess of all again and again; a guess needs all before it right."""
        lengths: dict[int, int] = {}
        expected = float(num_tokens)
        likeliest = [(-chance, row) for row, chance in chances.items()]
        heapify(likeliest)
        while likeliest and budget:
            chance, row = -likeliest[0][0], likeliest[0][1]
            if not self._cost.is_worth(chance, num_tokens, expected):
                break
            lengths[row] = lengths.get(row, 0) + 1
            num_tokens, expected, budget = num_tokens + 1, expected + chance, budget - 1
            if lengths[row] < limits[row]:
                heapreplace(likeliest, (-chance * chances[row], row))
            else:
                heappop(likeliest)
        return lengths


def _lookup(sequence: Sequence) -> PromptLookup:
    if sequence.lookup is None:
        sequence.lookup = PromptLookup(sequence.token_ids, sequence.num_prompt_tokens)
    return sequence.lookup


def _limit(sequence: Sequence) -> int:
    """How many guesses it has use for: none behind the last token that it may generate."""
    if sequence.constraint is not None:
        return 0
    lookup = _lookup(sequence)
    lookup.read()
    if not lookup.has_guess:
        return 0
    return min(MAX_DRAFT_TOKENS, sequence.max_tokens - sequence.num_generated - 1)
