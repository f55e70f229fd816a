"""Rotary frequencies: which angle each pair of a head's dimensions turns by per position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from astrai_engine.errors import ModelLoadError

RopeType = Literal["default", "linear", "llama3", "yarn"]
SUPPORTED_ROPE_TYPES: tuple[str, ...] = get_args(RopeType)


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How positions become angles.

    Attributes:
        theta: base of the geometric series of frequencies.
        rope_type: how the frequencies are scaled to reach a longer context.
        factor: how many times longer that context is.
        original_max_seq_len: the context the model was trained on before scaling, in tokens.
        low_freq_factor: llama3: wavelengths above ``original / low`` are fully scaled.
        high_freq_factor: llama3: wavelengths below ``original / high`` are not scaled.
        beta_fast: yarn: dimensions turning more often than this within the original context
            are not scaled.
        beta_slow: yarn: dimensions turning less often than this are fully scaled.
        truncate: yarn: round the borders of the ramp to whole dimensions.
        attention_factor: yarn: multiplies the rotation; 1 elsewhere.
        divisors: one divisor per frequency, as GGUF files store a scaling; empty for none.
    """

    theta: float = 10000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_seq_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "RopeConfig":
        """Read the rope settings of a ``config.json``, in its present and its older form.

        Args:
            config: the whole configuration.

        Raises:
            ModelLoadError: a scaling type that is not supported, or a setting it needs is missing.
        """
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
        if rope_type not in SUPPORTED_ROPE_TYPES:
            raise ModelLoadError(
                f"Rope scaling of type {rope_type!r} is not supported; "
                f"supported are {', '.join(SUPPORTED_ROPE_TYPES)}."
            )
        partial = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if partial != 1.0:
            raise ModelLoadError(
                f"Rotating only part of a head (partial_rotary_factor {partial}) is not supported."
            )
        theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
        if rope_type == "default":
            return cls(theta=theta)
        original = (
            config.get("original_max_position_embeddings")
            or scaling.get("original_max_position_embeddings")
            or config["max_position_embeddings"]
        )
        factor = scaling.get("factor")
        if factor is None and rope_type == "yarn":
            factor = config["max_position_embeddings"] / original
        if factor is None:
            raise ModelLoadError(f"Rope scaling of type {rope_type!r} needs a 'factor'.")
        return cls(
            theta=theta,
            rope_type=cast("RopeType", rope_type),
            factor=factor,
            original_max_seq_len=original,
            low_freq_factor=scaling.get("low_freq_factor") or 1.0,
            high_freq_factor=scaling.get("high_freq_factor") or 4.0,
            beta_fast=scaling.get("beta_fast") or 32.0,
            beta_slow=scaling.get("beta_slow") or 1.0,
            truncate=scaling.get("truncate", True),
            attention_factor=_attention_factor(rope_type, factor, scaling),
        )


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """The angle per position of each pair of dimensions.

    Args:
        rope: the settings.
        head_dim: dimensions of a head.

    Returns:
        float32 ``[head_dim / 2]`` on the CPU.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies: torch.Tensor = 1.0 / rope.theta**exponents
    if rope.rope_type == "linear":
        frequencies = frequencies / rope.factor
    elif rope.rope_type == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.rope_type == "yarn":
        frequencies = _yarn(frequencies, rope, head_dim)
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors, dtype=torch.float32)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    turns = rope.original_max_seq_len * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return _blend(frequencies, frequencies / rope.factor, kept.clamp(0, 1))


def _yarn(frequencies: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """As llama3, but the blend is linear in the dimension's index, between two borders."""

    def border(turns: float) -> float:
        wavelength_ratio = rope.original_max_seq_len / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength_ratio) / (2 * math.log(rope.theta))

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(head_dim // 2, dtype=torch.float32)
    kept = 1 - ((index - low) / (high - low)).clamp(0, 1)
    return _blend(frequencies, frequencies / rope.factor, kept)


def _blend(kept: torch.Tensor, scaled: torch.Tensor, share_kept: torch.Tensor) -> torch.Tensor:
    return kept * share_kept + scaled * (1 - share_kept)


def _attention_factor(rope_type: str, factor: float, scaling: Mapping[str, Any]) -> float:
    if rope_type != "yarn":
        return 1.0
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
