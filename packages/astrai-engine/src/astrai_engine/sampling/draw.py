"""The random draw: a pure function of (seed, choice index, position).

A counter instead of a stateful generator makes the same seed give the same text alone or in any
batch, after a preemption, and on any device.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_Words = npt.NDArray[np.uint64]


def _mix(words: _Words) -> _Words:
    """The finaliser of SplitMix64: every input bit changes every output bit.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniforms(counters: Sequence[tuple[int, int, int]]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) with 53 random bits for one token of one choice.

    Args:
        counters: seed, choice index and position, for each number.

    Returns:
        ``[len(counters)]``.
    """
    words = np.array([(s & _MASK, i, p) for s, i, p in counters], dtype=np.uint64).reshape(-1, 3)
    state = _mix(words[:, 0] + _GOLDEN)
    state = _mix(state ^ (words[:, 1] * _GOLDEN + _GOLDEN))
    state = _mix(state ^ (words[:, 2] * _GOLDEN + _GOLDEN))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Pick one column per row by inverting the cumulated probabilities.

    Args:
        probs: ``[rows, columns]``, not necessarily summing to one; removed columns hold zero.
        uniforms: ``[rows]`` float64 in [0, 1).

    Returns:
        ``[rows]`` int64; always a column whose probability is above zero, and any column of a
        row that holds NaN.
    """
    cumulated = probs.double().cumsum(-1)
    total = cumulated[:, -1]
    # The product may round up to the total, which lies beyond the last possible column.
    target = torch.minimum(uniforms * total, total.nextafter(torch.zeros_like(total)))
    picked = torch.searchsorted(cumulated, target.unsqueeze(-1), right=True).squeeze(-1)
    return picked.clamp_(max=probs.shape[-1] - 1)
