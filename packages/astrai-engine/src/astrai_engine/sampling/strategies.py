"""Filters on logits, each a strategy of its own, in the field's usual definitions.

Every strategy takes logits ``[rows, vocab]`` and gives new ones of the same shape with the
removed tokens at minus infinity; its input is never changed. Parameters are a number for all
rows or one per row.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

MIN_TEMPERATURE = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""

_REMOVED = float("-inf")


class BaseSamplingStrategy(ABC):
    """One step of turning raw logits into the distribution that is drawn from."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """New logits ``[rows, vocab]``; the input is left as it was."""


class TemperatureStrategy(BaseSamplingStrategy):
    """Divides by the temperature; a temperature too small to divide by keeps only the maximum.

    Args:
        temperature: a number, or ``[rows]``.
    """

    def __init__(self, temperature: float | Tensor) -> None:
        self.temperature = temperature

    def apply(self, logits: Tensor) -> Tensor:
        """Scaled logits ``[rows, vocab]``."""
        temperature = _per_row(self.temperature, logits)
        greedy = temperature < MIN_TEMPERATURE
        scaled = logits / torch.where(greedy, torch.ones_like(temperature), temperature)
        if not bool(greedy.any()):
            return scaled
        best = logits.argmax(-1, keepdim=True)
        only_best = torch.full_like(logits, _REMOVED).scatter_(-1, best, 0.0)
        return torch.where(greedy, only_best, scaled)


class TopKStrategy(BaseSamplingStrategy):
    """Keeps the ``top_k`` largest logits, and those equal to the smallest of them.

    Args:
        top_k: a number, or integers ``[rows]``; 0 and below keep everything.
    """

    def __init__(self, top_k: int | Tensor) -> None:
        self.top_k = top_k

    def apply(self, logits: Tensor) -> Tensor:
        """Filtered logits ``[rows, vocab]``."""
        vocab = logits.shape[-1]
        top_k = _per_row(self.top_k, logits).long()
        top_k = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab)
        largest = logits.topk(int(top_k.max()), dim=-1).values
        smallest_kept = largest.gather(-1, (top_k - 1).expand(logits.shape[0], 1))
        return logits.masked_fill(logits < smallest_kept, _REMOVED)


class TopPStrategy(BaseSamplingStrategy):
    """Keeps the likeliest tokens up to the one whose cumulated probability reaches ``top_p``.

    Args:
        top_p: a number, or ``[rows]``; 1 keeps everything and 0 only the likeliest token.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration.
    """

    def __init__(self, top_p: float | Tensor) -> None:
        self.top_p = top_p

    def apply(self, logits: Tensor) -> Tensor:
        """Filtered logits ``[rows, vocab]``."""
        top_p = _per_row(self.top_p, logits)
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        kept_in_order = self.kept(ordered.softmax(-1), top_p)
        kept = torch.empty_like(kept_in_order).scatter_(-1, order, kept_in_order)
        return logits.masked_fill(~kept, _REMOVED)

    @staticmethod
    def kept(ordered_probs: Tensor, top_p: Tensor) -> Tensor:
        """Which columns stay, for probabilities in descending order.

        Args:
            ordered_probs: ``[rows, columns]``, normalised over the tokens still in play.
            top_p: ``[rows, 1]``.

        Returns:
            Booleans ``[rows, columns]``; the first column always stays.
        """
        before = ordered_probs.cumsum(-1) - ordered_probs
        kept = (before < top_p) | (top_p >= 1.0)
        kept[..., 0] = True
        return kept


class MinPStrategy(BaseSamplingStrategy):
    """Keeps tokens at least ``min_p`` times as likely as the likeliest.

    Args:
        min_p: a number, or ``[rows]``; 0 keeps everything.
    """

    def __init__(self, min_p: float | Tensor) -> None:
        self.min_p = min_p

    def apply(self, logits: Tensor) -> Tensor:
        """Filtered logits ``[rows, vocab]``."""
        probs = logits.softmax(-1)
        threshold = _per_row(self.min_p, logits) * probs.amax(-1, keepdim=True)
        return logits.masked_fill(probs < threshold, _REMOVED)


def _per_row(value: float | Tensor, logits: Tensor) -> Tensor:
    """A parameter as ``[rows, 1]`` (or ``[1, 1]``) beside the logits."""
    dtype = logits.dtype if logits.dtype.is_floating_point else None
    tensor = torch.as_tensor(value, device=logits.device)
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.reshape(-1, 1)
