"""Drawing a token per row as an op: a CUDA kernel on GPUs, torch on CPUs.

The order is that of transformers: temperature, top-k, top-p, min-p, draw. The draw is a pure
function of (seed, choice, position): the same numbers give the same token on any device and in any
batch.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from astrai_kernels.cuda import sampling
from astrai_kernels.cuda.launcher import loaded_kernel, unavailable_reason
from astrai_kernels.errors import CudaUnavailableError, ShapeError
from astrai_kernels.ops.library import register, require

IS_NAN = -1
"""In place of a token: the row's logits hold NaN."""

IS_EMPTY = -2
"""In place of a token: the row's logits are all minus infinity."""

MIN_TEMPERATURE = 1e-5
"""Temperatures below this take the likeliest token: dividing by them would overflow."""

_FIELDS, _WORDS = struct.Struct("=3d4q"), struct.Struct("=7q")


class SampleRow(NamedTuple):
    """How a row is sampled.

    Attributes:
        temperature: below `MIN_TEMPERATURE` the likeliest token is taken.
        top_p: 1 is off, 0 takes the likeliest token.
        min_p: 0 is off.
        seed: any 64 bits.
        choice: the index among the choices of a request.
        position: tokens generated so far.
        top_k: 0 and below, or the whole vocabulary: off; 1 takes the likeliest token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0
    top_k: int = 0


def pack_rows(rows: Sequence[SampleRow]) -> Tensor:
    """Lay rows out for `sample_rows`: int64 ``[rows, 7]`` on the CPU."""
    packed = (_FIELDS.pack(*row._replace(seed=_signed(row.seed))) for row in rows)
    words = [_WORDS.unpack(each) for each in packed]
    return torch.tensor(words, dtype=torch.int64).view(-1, len(SampleRow._fields))


def sample_rows(logits: Tensor, rows: Tensor) -> Tensor:
    """Draw a token per row; the host waits for nothing.

    Args:
        logits: ``[rows, vocab]`` float32; ties go to the lower token id.
        rows: from `pack_rows`, on the logits' device.

    Returns:
        ``[rows]`` int64: token ids, or `IS_NAN` or `IS_EMPTY` where none can be drawn.

    Raises:
        ShapeError: the shapes do not fit.
        CudaUnavailableError: the logits are on a GPU, and no kernel can serve them.
    """
    if logits.dim() != 2 or rows.shape != (len(logits), len(SampleRow._fields)):
        raise ShapeError(
            f"logits must be [rows, vocab] and rows as pack_rows gives them, not "
            f"{tuple(logits.shape)} and {tuple(rows.shape)}."
        )
    token_ids: Tensor = _sample(logits, rows)
    return token_ids


def sampling_unavailable_reason(logits: Tensor) -> str | None:
    """Why no kernel can draw from logits ``[rows, vocab]``; None when one can, and is loaded."""
    reason = unavailable_reason(logits.device) or sampling.unsupported(logits)
    if reason is None:
        try:
            loaded_kernel(sampling.SAMPLE_LAUNCH, logits.get_device())
        except CudaUnavailableError as error:
            return str(error)
    return reason


def uniforms(rows: Tensor) -> Tensor:
    """The number in [0, 1) that each packed row is drawn with: float64 ``[rows]``.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators.
    """
    seed, choice, position = rows[:, 3], rows[:, 4], rows[:, 5]
    state = _mix(seed + _GOLDEN)
    state = _mix(state ^ (choice * _GOLDEN + _GOLDEN))
    state = _mix(state ^ (position * _GOLDEN + _GOLDEN))
    return _shifted(state, 11).to(torch.float64) * 2.0**-53


def _signed(word: int) -> int:
    """The signed number of the same 64 bits."""
    word &= (1 << 64) - 1
    return word - (word >> 63 << 64)


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _mix(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64; products wrap around."""
    words = (words ^ _shifted(words, 30)) * _signed(0xBF58476D1CE4E5B9)
    words = (words ^ _shifted(words, 27)) * _signed(0x94D049BB133111EB)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, count: int) -> Tensor:
    """Shift right as unsigned numbers are."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def _sample_in_torch(logits: Tensor, rows: Tensor) -> Tensor:
    temperature, top_p, min_p = rows.view(torch.float64)[:, :3].unsqueeze(-1).unbind(1)
    top_k, vocab = rows[:, 6:], logits.shape[-1]
    is_greedy = (temperature < MIN_TEMPERATURE) | (top_k == 1) | (top_p == 0)
    is_cut = (top_k > 0) & (top_k < vocab)
    column = torch.arange(vocab, device=logits.device)
    scaled = logits.double() / torch.where(is_greedy, 1.0, temperature)
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    probs = values.masked_fill(is_cut & (column >= top_k), -torch.inf).softmax(-1)
    is_kept = (probs.cumsum(-1) - probs < top_p) | (top_p >= 1) | (column == 0)
    probs = probs * (is_kept & (probs >= min_p * probs[:, :1]))
    # Where nothing asks for an order, the draw is over the vocabulary as it is.
    is_ordered = is_cut | (top_p < 1)
    probs = torch.where(is_ordered, probs, torch.zeros_like(probs).scatter(-1, ids, probs))
    drawn = _draw(probs, uniforms(rows))
    drawn = torch.where(is_ordered, ids.gather(-1, drawn), drawn)
    best, likeliest = logits.max(-1, keepdim=True)
    drawn = torch.where(is_greedy | (best == torch.inf), likeliest, drawn)
    drawn = drawn.masked_fill(best == -torch.inf, IS_EMPTY).masked_fill(best.isnan(), IS_NAN)
    return drawn.squeeze(-1)


def _draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulated probabilities: ``[rows, 1]``, never a column of probability zero."""
    cumulated = probs.cumsum(-1)
    total = cumulated[:, -1:]
    # The product may round up to the total, which lies beyond the last possible column.
    below = total.nextafter(torch.zeros_like(total))
    target = torch.minimum(uniform.unsqueeze(-1) * total, below)
    return torch.searchsorted(cumulated, target, right=True).clamp(max=probs.shape[-1] - 1)


def _sample_on_gpu(logits: Tensor, rows: Tensor) -> Tensor:
    require(sampling.unsupported(logits) or sampling.unsupported_rows(logits, rows))
    token_ids = _token_ids(logits)
    sampling.run_sample(logits, rows, token_ids)
    return token_ids


def _token_ids(logits: Tensor, *others: Tensor) -> Tensor:
    """Room for the tokens."""
    del others
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


_sample = register(
    "sample_rows(Tensor logits, Tensor rows) -> Tensor",
    cpu=_sample_in_torch,
    cuda=_sample_on_gpu,
    fake=_token_ids,
)
