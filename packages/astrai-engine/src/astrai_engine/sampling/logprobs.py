"""Log-probabilities of the raw distribution, before any penalty, temperature or filter."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

VERY_UNLIKELY = -9999.0
"""Reported for a token of probability zero: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Natural logarithms at one position.

    Attributes:
        chosen: of the token that was chosen.
        top: ids and values of the likeliest tokens, likeliest first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


class RawDistribution:
    """Raw logits of the rows that asked for log-probabilities, kept until tokens are chosen.

    Args:
        logits: ``[rows, vocab]``; copied, since sampling changes logits in place.
        rows: the rows that asked, each with its number of alternatives.
    """

    def __init__(self, logits: Tensor, rows: dict[int, int]) -> None:
        self._num_top = rows
        self._place = {row: place for place, row in enumerate(rows)}
        index = torch.tensor(list(rows), device=logits.device)
        self._logprobs = logits.index_select(0, index).log_softmax(-1).clamp(min=VERY_UNLIKELY)

    def of(self, row: int, token_id: int) -> RowLogprobs | None:
        """What to report for ``token_id`` in ``row``; None if the row did not ask."""
        place = self._place.get(row)
        if place is None:
            return None
        return _report(self._logprobs[place], token_id, self._num_top[row])


def score_tokens(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[RowLogprobs]:
    """What the model thought of given tokens.

    Args:
        logits: ``[rows, vocab]``, each row predicting one token.
        token_ids: the token that really came, for each row.
        num_top: alternatives to report with each.
    """
    logprobs = logits.log_softmax(-1).clamp(min=VERY_UNLIKELY)
    return [_report(row, token, num_top) for row, token in zip(logprobs, token_ids, strict=True)]


def _report(logprobs: Tensor, token_id: int, num_top: int) -> RowLogprobs:
    values, ids = logprobs.topk(min(num_top, logprobs.shape[-1]))
    return RowLogprobs(
        float(logprobs[token_id]), tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
