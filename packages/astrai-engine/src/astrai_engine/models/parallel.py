"""Weights of which every rank holds a part, so that several processes run one model together.

A rank is one of these processes. Each computes some of the heads and some of the feed-forward
block's inner dimensions; the projections that lead back to the residual stream give a part of a
sum on every rank, which is added up before anybody reads it. So every rank has the whole residual
stream, and all of them run the same steps.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

from astrai_kernels.cpu.weights import PackedWeight
from astrai_kernels.ops import LinearWeight, Weight


class RankGroup(Protocol):
    """The processes that run a model together, as one of them sees them.

    All of them call the same methods in the same order, with tensors of the same shapes.
    """

    @property
    def rank(self) -> int:
        """Which of them this one is; 0 is the one that others talk to."""

    @property
    def size(self) -> int:
        """How many there are."""

    def add(self, part: Tensor) -> Tensor:
        """The sum of what all ranks pass, on every rank; ``part`` may be changed in place."""

    def join(self, columns: Tensor) -> Tensor:
        """The columns of all ranks, side by side, on rank 0; other ranks get their own back."""


@dataclass(frozen=True, eq=False)
class SummedWeight(Weight):
    """A linear layer whose inputs are shared out among ranks.

    Attributes:
        part: the columns of this rank's inputs, without a bias.
        bias: ``[out_features]``, on every rank; or None.
        group: the ranks.
    """

    part: Weight
    bias: Tensor | None
    group: RankGroup

    @property
    def in_features(self) -> int:
        """Elements of this rank's part of an input row."""
        return self.part.in_features

    @property
    def out_features(self) -> int:
        """Elements of an output row."""
        return self.part.out_features

    def linear(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]``, this rank's, to ``[..., out_features]``, the same on all."""
        total = self.group.add(self.part.linear(x))
        return total if self.bias is None else total + self.bias


@dataclass(frozen=True, eq=False)
class VocabularyPart(Weight):
    """An embedding or head whose rows are shared out among ranks, in runs of equal length.

    Attributes:
        part: this rank's rows.
        first: the token that the first of them is for.
        num_tokens: of the whole vocabulary.
        group: the ranks.
    """

    part: LinearWeight | PackedWeight
    first: int
    num_tokens: int
    group: RankGroup

    @property
    def in_features(self) -> int:
        """Elements of an input row."""
        return self.part.in_features

    @property
    def out_features(self) -> int:
        """Tokens of the whole vocabulary."""
        return self.num_tokens

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows ``[*ids.shape, in_features]`` that ``ids`` name; zeros for one that nobody has.

        One rank has each row and the others add nothing to it, so the sum is exact.
        """
        local = ids - self.first
        is_elsewhere = (local < 0) | (local >= self.part.out_features)
        rows = self.part.lookup(local.masked_fill(is_elsewhere, 0))
        return self.group.add(rows.masked_fill_(is_elsewhere.unsqueeze(-1), 0.0))

    def linear(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``; whole on rank 0 only."""
        return self._join(self.part.linear(x))

    def norm_linear(self, x: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
        """See `astrai_kernels.ops.norm_linear`; whole on rank 0 only."""
        return self._join(self.part.norm_linear(x, norm_weight, eps))

    def _join(self, columns: Tensor) -> Tensor:
        """All ranks' columns; the last rank has fewer where the vocabulary does not divide."""
        width = -(-self.out_features // self.group.size)
        padded = F.pad(columns, (0, width - columns.shape[-1]))
        return self.group.join(padded)[..., : self.out_features].contiguous()
