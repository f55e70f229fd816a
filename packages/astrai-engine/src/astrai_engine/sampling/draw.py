"""The random draw: a pure function of (seed, choice index, position).

A counter instead of a stateful generator makes the same seed give the same text alone or in any
batch, after a preemption, and on any device.
"""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """The finaliser of SplitMix64: every input bit changes every output bit.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators.
    """
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for one token of one choice."""
    state = _mix((seed + _GOLDEN) & _MASK)
    state = _mix((state ^ (index * _GOLDEN + _GOLDEN)) & _MASK)
    state = _mix((state ^ (position * _GOLDEN + _GOLDEN)) & _MASK)
    return (state >> 11) * 2.0**-53


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Pick one column per row by inverting the cumulated probabilities.

    Args:
        probs: ``[rows, columns]``, not necessarily summing to one; removed columns hold zero.
        uniforms: ``[rows]`` float64 in [0, 1).

    Returns:
        ``[rows]`` int64; always a column whose probability is above zero.
    """
    cumulated = probs.double().cumsum(-1)
    target = (uniforms * cumulated[:, -1]).unsqueeze(-1)
    picked = torch.searchsorted(cumulated, target, right=True).squeeze(-1)
    last_possible = (probs > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(picked, last_possible)
