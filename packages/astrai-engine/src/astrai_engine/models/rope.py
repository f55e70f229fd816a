"""Rotary frequencies: which angle each pair of a head's dimensions turns by per position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from astrai_engine.errors import ModelLoadError

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
SUPPORTED_ROPE_TYPES: tuple[str, ...] = get_args(RopeType)


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How positions become angles.

    Attributes:
        theta: base of the geometric series of frequencies.
        rotated_share: of a head's dimensions, the first ones; the others are left as they are.
        rope_type: how the frequencies are scaled to reach a longer context.
        factor: how many times longer that context is.
        original_max_seq_len: the context the model was trained on before scaling, in tokens.
        low_freq_factor: llama3: wavelengths above ``original / low`` are fully scaled.
        high_freq_factor: llama3: wavelengths below ``original / high`` are not scaled.
        beta_fast: yarn: dimensions turning more often than this within the original context
            are not scaled.
        beta_slow: yarn: dimensions turning less often than this are fully scaled.
        truncate: yarn: round the borders of the ramp to whole dimensions.
        short_divisors: longrope: one divisor per frequency, up to the original context.
        long_divisors: longrope: the same beyond it.
        attention_factor: yarn and longrope: multiplies the rotation; 1 elsewhere.
        divisors: one divisor per frequency, as GGUF files store a scaling; empty for none.
    """

    theta: float = 10000.0
    rotated_share: float = 1.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_seq_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, is_yarn_longrope: bool = False) -> "RopeConfig":
        """Read the rope settings of a ``config.json``, in its present and its older form.

        Args:
            config: the whole configuration.
            is_yarn_longrope: the family calls longrope ``yarn``.

        Raises:
            ModelLoadError: a scaling type that is not supported, or a setting it needs is missing.
        """
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
        if rope_type == "su" or (rope_type == "yarn" and is_yarn_longrope):
            rope_type = "longrope"  # what Phi-3 called it before it had a name
        if rope_type not in SUPPORTED_ROPE_TYPES:
            raise ModelLoadError(
                f"Rope scaling of type {rope_type!r} is not supported; "
                f"supported are {', '.join(SUPPORTED_ROPE_TYPES)}."
            )
        plain: dict[str, Any] = {
            "theta": scaling.get("rope_theta") or config.get("rope_theta") or 10000.0,
            "rotated_share": scaling.get("partial_rotary_factor")
            or config.get("partial_rotary_factor")
            or 1.0,
        }
        if rope_type == "default":
            return cls(**plain)
        original = _original(config, scaling, rope_type)
        factor = scaling.get("factor")
        if factor is None and rope_type in ("yarn", "longrope"):
            factor = config["max_position_embeddings"] / original
        if factor is None:
            raise ModelLoadError(f"Rope scaling of type {rope_type!r} needs a 'factor'.")
        return cls(
            **plain,
            rope_type=cast("RopeType", rope_type),
            factor=factor,
            original_max_seq_len=original,
            low_freq_factor=scaling.get("low_freq_factor") or 1.0,
            high_freq_factor=scaling.get("high_freq_factor") or 4.0,
            beta_fast=scaling.get("beta_fast") or 32.0,
            beta_slow=scaling.get("beta_slow") or 1.0,
            truncate=scaling.get("truncate", True),
            short_divisors=_divisors(scaling, rope_type, "short_factor"),
            long_divisors=_divisors(scaling, rope_type, "long_factor"),
            attention_factor=attention_factor(rope_type, factor, original, scaling),
        )

    def longest_seq_len(self, max_position_embeddings: int) -> int:
        """The longest context a configuration allows, in tokens.

        Args:
            max_position_embeddings: as Hugging Face names it: for dynamic scaling, the context
                before it.
        """
        if self.rope_type == "dynamic":
            return int(max_position_embeddings * self.factor)
        return max_position_embeddings

    def trained_seq_len(self, longest: int) -> int:
        """The part of the longest context in which the frequencies are those of the training.

        Less than all of it with dynamic scaling only, which changes them for the whole context.
        """
        return self.original_max_seq_len if self.rope_type == "dynamic" else longest


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_seq_len: int = 0) -> torch.Tensor:
    """The angle per position of each pair of dimensions.

    Args:
        rope: the settings.
        head_dim: dimensions of a head.
        max_seq_len: the context to serve, in tokens; one that exceeds the original context
            changes the frequencies of dynamic and longrope scaling.

    Returns:
        float32 ``[rotated dimensions / 2]`` on the CPU.

    Raises:
        ModelLoadError: the settings do not fit the head.
    """
    dim = int(head_dim * rope.rotated_share)
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    theta = _stretched_theta(rope, dim, max_seq_len) if rope.rope_type == "dynamic" else rope.theta
    frequencies: torch.Tensor = 1.0 / theta**exponents
    if rope.rope_type == "linear":
        frequencies = frequencies / rope.factor
    elif rope.rope_type == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.rope_type == "yarn":
        frequencies = _yarn(frequencies, rope, dim)
    elif rope.rope_type == "longrope":
        is_long = max_seq_len > rope.original_max_seq_len
        divisors = rope.long_divisors if is_long else rope.short_divisors
        frequencies = _divided(frequencies, divisors)
    return _divided(frequencies, rope.divisors) if rope.divisors else frequencies


def attention_factor(
    rope_type: str, factor: float, original: int, scaling: Mapping[str, Any]
) -> float:
    """The factor on the rotation that yarn and longrope have.

    Args:
        rope_type: of the scaling.
        factor: how many times longer the context is.
        original: the context before scaling, in tokens.
        scaling: Hugging Face's settings, which may give the factor or what yarn's depends on.
    """
    if rope_type not in ("yarn", "longrope"):
        return 1.0
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    if rope_type == "longrope":
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all)
    return _mscale(factor, 1.0)


def _original(config: Mapping[str, Any], scaling: Mapping[str, Any], rope_type: str) -> int:
    """The context before scaling, in tokens."""
    longest: int = config["max_position_embeddings"]
    if rope_type == "dynamic":
        return longest
    return (
        config.get("original_max_position_embeddings")
        or scaling.get("original_max_position_embeddings")
        or longest
    )


def _divisors(scaling: Mapping[str, Any], rope_type: str, name: str) -> tuple[float, ...]:
    if rope_type != "longrope":
        return ()
    if scaling.get(name) is None:
        raise ModelLoadError(f"Rope scaling of type 'longrope' needs a {name!r}.")
    return tuple(scaling[name])


def _divided(frequencies: torch.Tensor, divisors: tuple[float, ...]) -> torch.Tensor:
    if len(divisors) != len(frequencies):
        raise ModelLoadError(
            f"The model's rope scaling has {len(divisors)} factors for {len(frequencies)} "
            "frequencies; download its configuration again."
        )
    return frequencies / torch.tensor(divisors, dtype=torch.float32)


def _stretched_theta(rope: RopeConfig, dim: int, max_seq_len: int) -> float:
    """The base at which the lowest frequency reaches over the whole context."""
    ratio = max(max_seq_len, rope.original_max_seq_len) / rope.original_max_seq_len
    stretch: float = (rope.factor * ratio - (rope.factor - 1)) ** (dim / (dim - 2))
    return rope.theta * stretch


def _llama3(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    turns = rope.original_max_seq_len * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return _blend(frequencies, frequencies / rope.factor, kept.clamp(0, 1))


def _yarn(frequencies: torch.Tensor, rope: RopeConfig, dim: int) -> torch.Tensor:
    """As llama3, but the blend is linear in the dimension's index, between two borders."""

    def border(turns: float) -> float:
        wavelength_ratio = rope.original_max_seq_len / (turns * 2 * math.pi)
        return dim * math.log(wavelength_ratio) / (2 * math.log(rope.theta))

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(dim // 2, dtype=torch.float32)
    kept = 1 - ((index - low) / (high - low)).clamp(0, 1)
    return _blend(frequencies, frequencies / rope.factor, kept)


def _blend(kept: torch.Tensor, scaled: torch.Tensor, share_kept: torch.Tensor) -> torch.Tensor:
    return kept * share_kept + scaled * (1 - share_kept)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
