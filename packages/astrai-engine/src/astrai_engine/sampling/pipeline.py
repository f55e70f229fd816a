"""Strategies in a row, and the draw at their end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from astrai_engine.sampling.draw import draw
from astrai_engine.sampling.strategies import (
    BaseSamplingStrategy,
    MinPStrategy,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
)


class SamplingPipeline(BaseSamplingStrategy):
    """Applies strategies in the order given, then draws.

    Args:
        strategies: the usual order is temperature, top-k, top-p, min-p.
    """

    def __init__(self, strategies: Sequence[BaseSamplingStrategy]) -> None:
        self.strategies = tuple(strategies)

    def apply(self, logits: Tensor) -> Tensor:
        """Filtered logits ``[rows, vocab]``."""
        for strategy in self.strategies:
            logits = strategy.apply(logits)
        return logits

    def sample(self, logits: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a token per row.

        Args:
            logits: ``[rows, vocab]``.
            generator: source of randomness; torch's default one if None.

        Returns:
            Token ids ``[rows]`` int64.
        """
        probs = self.apply(logits).softmax(-1)
        uniforms = torch.rand(
            probs.shape[0], dtype=torch.float64, device=probs.device, generator=generator
        )
        return draw(probs, uniforms)


def sample(
    logits: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 50,
    top_p: float | Tensor = 1.0,
    *,
    min_p: float | Tensor = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a token per row in one call.

    Args:
        logits: ``[rows, vocab]``.
        temperature: 0 is greedy; a number or ``[rows]``, as the other parameters.
        top_k: 0 or -1 turns the filter off.
        top_p: 1 turns the filter off.
        min_p: 0 turns the filter off.
        generator: source of randomness; torch's default one if None.

    Returns:
        Token ids ``[rows]`` int64.
    """
    pipeline = SamplingPipeline(
        [
            TemperatureStrategy(temperature),
            TopKStrategy(top_k),
            TopPStrategy(top_p),
            MinPStrategy(min_p),
        ]
    )
    return pipeline.sample(logits, generator=generator)
