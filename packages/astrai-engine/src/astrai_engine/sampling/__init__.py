"""From logits to tokens."""

from astrai_engine.sampling.pipeline import SamplingPipeline, sample
from astrai_engine.sampling.sampler import SampledToken, Sampler
from astrai_engine.sampling.strategies import (
    BaseSamplingStrategy,
    MinPStrategy,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
)

__all__ = [
    "BaseSamplingStrategy",
    "MinPStrategy",
    "SampledToken",
    "Sampler",
    "SamplingPipeline",
    "TemperatureStrategy",
    "TopKStrategy",
    "TopPStrategy",
    "sample",
]
