"""Which part of a model each rank has, and of each tensor of its checkpoint.

Heads are shared out by groups, so that the queries that attend over a K/V head are where it is. A
share need not be equal to the others: of three K/V heads, two ranks have two and one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch

from astrai_engine.errors import ConfigurationError
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.parallel import RankGroup

_ALIGNMENT = 32
"""Inner dimensions that stay together where possible: those that share a scale in GGUF's blocks."""


class Span(NamedTuple):
    """A run of equal things.

    Attributes:
        start: the first.
        stop: behind the last.
        total: how many there are in all.
    """

    start: int
    stop: int
    total: int

    def __len__(self) -> int:
        return self.stop - self.start

    def times(self, count: int) -> "Span":
        """The same, where each thing is ``count`` smaller ones."""
        return Span(self.start * count, self.stop * count, self.total * count)

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> "Span":
        """What a rank has of ``total``: shares differ by one at most, and rank 0 has a largest."""
        return cls(-(-rank * total // size), -(-(rank + 1) * total // size), total)


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of a tensor.

    Attributes:
        dim: 0 takes rows, or elements of a vector; 1 takes columns.
        total: rows or columns of the whole tensor.
        ranges: those that are taken, in order; of columns, one.
    """

    dim: int
    total: int
    ranges: tuple[range, ...]

    @classmethod
    def along(cls, dim: int, spans: Sequence[Span]) -> "Cut":
        """The spans of pieces that lie one behind the other in a tensor."""
        ranges, offset = [], 0
        for span in spans:
            ranges.append(range(offset + span.start, offset + span.stop))
            offset += span.total
        return cls(dim, offset, tuple(ranges))

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Of the part; a tensor that is not of the expected size keeps its own, and is refused."""
        if len(whole) <= self.dim or whole[self.dim] != self.total:
            return whole
        return (*whole[: self.dim], sum(map(len, self.ranges)), *whole[self.dim + 1 :])

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a whole tensor."""
        pieces = [tensor.narrow(self.dim, each.start, len(each)) for each in self.ranges]
        return torch.cat(pieces, self.dim)

    def runs(self, whole: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Where the part lies in a whole tensor of such a shape, and how many values in a row."""
        if self.dim == 0:
            width = prod(whole[1:])
            for each in self.ranges:
                yield each.start * width, len(each) * width
            return
        for row in range(whole[0]):
            for each in self.ranges:
                yield row * self.total + each.start, len(each)


@dataclass(frozen=True)
class Share:
    """One rank's part of a model.

    Attributes:
        whole: the model.
        group: the ranks.

    Raises:
        ConfigurationError: the model cannot be shared out so; the message says why.
    """

    whole: ModelConfig
    group: RankGroup

    def __post_init__(self) -> None:
        reason = self._refusal()
        if reason is not None:
            raise ConfigurationError(
                f"tensor_parallel_size is {self.group.size}, but {reason}; choose another size, "
                "or 1."
            )

    @property
    def config(self) -> ModelConfig:
        """What this rank computes: fewer heads and inner dimensions, everything else whole."""
        return replace(
            self.whole,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )

    @cached_property
    def kv_heads(self) -> Span:
        """K/V heads; where there are fewer than ranks, several ranks have the same one."""
        total, rank, size = self.whole.num_kv_heads, self.group.rank, self.group.size
        if total >= size:
            return Span.of(total, rank, size)
        first = rank * total // size
        return Span(first, first + 1, total)

    @cached_property
    def heads(self) -> Span:
        """Query heads: those of the K/V heads, or a part of those of the one that others share."""
        whole, kv_heads = self.whole, self.kv_heads
        group_size = whole.num_heads // whole.num_kv_heads
        if whole.num_kv_heads >= self.group.size:
            return kv_heads.times(group_size)
        sharers = self.group.size // whole.num_kv_heads
        first = kv_heads.start * group_size
        span = Span.of(group_size, self.group.rank % sharers, sharers)
        return Span(first + span.start, first + span.stop, whole.num_heads)

    @cached_property
    def inner(self) -> Span:
        """Dimensions inside the feed-forward block."""
        total, rank, size = self.whole.intermediate_size, self.group.rank, self.group.size
        unit = _ALIGNMENT if total % (_ALIGNMENT * size) == 0 else 1
        return Span.of(total // unit, rank, size).times(unit)

    @cached_property
    def vocabulary(self) -> Span:
        """Rows of embedding and head: runs of equal length, but for the last."""
        total = self.whole.vocab_size
        width = -(-total // self.group.size)
        ends = [min(rank * width, total) for rank in (self.group.rank, self.group.rank + 1)]
        return Span(ends[0], ends[1], total)

    def cut(self, name: str) -> Cut | None:
        """What this rank takes of a tensor of the checkpoint; None is all of it."""
        module, suffix = name.split(".")[-2:]
        if module in self._rows:
            return Cut.along(0, self._rows[module])
        if module in self._columns and suffix == "weight":
            return Cut.along(1, (self._columns[module],))
        return None

    @cached_property
    def _rows(self) -> dict[str, tuple[Span, ...]]:
        """Spans of the rows of each tensor whose outputs are shared out, by its module's name."""
        queries, keys = (span.times(self.whole.head_dim) for span in (self.heads, self.kv_heads))
        return {
            "embed_tokens": (self.vocabulary,),
            "lm_head": (self.vocabulary,),
            "q_proj": (queries,),
            "k_proj": (keys,),
            "v_proj": (keys,),
            "qkv_proj": (queries, keys, keys),
            "gate_proj": (self.inner,),
            "up_proj": (self.inner,),
            "gate_up_proj": (self.inner, self.inner),
        }

    @cached_property
    def _columns(self) -> dict[str, Span]:
        """Spans of the columns of each tensor whose inputs are shared out."""
        return {"o_proj": self.heads.times(self.whole.head_dim), "down_proj": self.inner}

    def _refusal(self) -> str | None:
        """Why the model cannot be shared out, as the end of a sentence; None when it can."""
        whole, size = self.whole, self.group.size
        if any(layer.is_sparse for layer in whole.layers):
            return "mixtures of experts cannot be shared out"
        if whole.qk_norm == "all":
            return "the model norms all heads of a token together"
        if whole.num_kv_heads < size and size % whole.num_kv_heads:
            return f"the model has {whole.num_kv_heads} K/V heads, which is not a divisor of it"
        if whole.num_heads < size:
            return f"the model has {whole.num_heads} heads"
        return None
