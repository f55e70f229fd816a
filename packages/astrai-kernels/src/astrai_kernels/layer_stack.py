"""The layers of a decoder, run one by one or, where a backend can, all in one call.

A small model's step is hundreds of phases of a few microseconds each; on a CPU, calling them one
by one would take as long again.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

from torch import Tensor

from astrai_kernels.backends.base import AttentionBackend, AttentionCache
from astrai_kernels.cpu.stack import NativeStack
from astrai_kernels.ops.phases import LayerPhases
from astrai_kernels.rotary import Rotary


class Layer(Protocol):
    """A layer of a decoder."""

    @property
    def phases(self) -> LayerPhases | None:
        """The layer as data; None when it does anything beyond the five phases."""

    def forward(
        self,
        hidden: Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        backend: AttentionBackend,
    ) -> Tensor:
        """Advance the residual stream ``[tokens, hidden]``, which may be changed in place."""


class LayerStack:
    """The layers of a decoder, whose weights stay as they are.

    Args:
        layers: in the order they run; a layer's index is its part of the cache.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    @cached_property
    def native(self) -> NativeStack | None:
        """The layers for the native CPU kernels; None where those cannot run all of them."""
        phases = [layer.phases for layer in self._layers]
        return NativeStack.of(phases)

    def forward(
        self,
        hidden: Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Advance the residual stream by all layers.

        Args:
            hidden: ``[tokens, hidden]``; may be changed in place.
            rotations: the step's, of which each layer uses one or none.
            cache: the step's view of the K/V cache.
            backend: computes attention, and decides how the layers run.
            wanted: int64, the tokens whose result is used; None is all. What is returned for the
                others is not defined: the last layer may leave them out.

        Returns:
            ``[tokens, hidden]``, the same numbers however the layers run.
        """
        return backend.run_layers(self, hidden, rotations, cache, wanted=wanted)
