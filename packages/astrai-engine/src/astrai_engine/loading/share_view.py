"""The part of a checkpoint's tensors that one rank has, as if it were a whole checkpoint."""

from collections.abc import Iterator

import torch

from astrai_engine.loading.checkpoint import StoredTensors
from astrai_engine.loading.shard import Filling
from astrai_engine.models.share import Share


class ShareView:
    """A share of each tensor under the tensor's own name; what is not in it is not kept.

    Args:
        tensors: the whole ones.
        share: says what is taken of each.
    """

    def __init__(self, tensors: StoredTensors, share: Share) -> None:
        self._tensors = tensors
        self._share = share

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files themselves."""
        return self._tensors.problems

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._tensors)

    def place(self, name: str) -> str:
        """The name of the file a tensor is in."""
        return self._tensors.place(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the share of a tensor, rows first."""
        whole, cut = self._tensors.shape(name), self._share.cut(name)
        return whole if cut is None else cut.shape(whole)

    def read(self, name: str) -> torch.Tensor:
        """The share of a tensor, on the CPU."""
        return self._tensors.read(name, self._share.cut(name))

    def fillings(self, name: str, slot: torch.Tensor) -> Iterator[Filling]:
        """What fills a contiguous tensor of the share's shape, in parts for several threads."""
        return self._tensors.fillings(name, slot, self._share.cut(name))
