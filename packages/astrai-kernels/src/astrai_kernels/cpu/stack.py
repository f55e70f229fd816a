"""A decoder's layers, laid out once for the native kernel that runs all of them in one call."""

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from astrai_kernels.cpu.library import (
    CpuLibrary,
    LayerStruct,
    StackStruct,
    load_library,
)
from astrai_kernels.cpu.weights import GATES, PackedWeight, as_float32
from astrai_kernels.errors import ShapeError
from astrai_kernels.ops.phases import LayerPhases
from astrai_kernels.rotary import Rotary

if TYPE_CHECKING:
    from astrai_kernels.backends.native_step import NativeStep

_LINE = 16
"""Floats in a line of the cache, where each part of the working memory begins."""

_HIDDEN_NORMS = ("attention_norm", "mlp_norm", "output_norm", "down_norm")
_HEAD_NORMS = ("query_norm", "key_norm")


class NativeStack:
    """Layers whose weights are all packed, and alike in shape; made by `of`.

    Args:
        layers: what `of` accepts.

    Attributes:
        hidden_size: features of the residual stream.
        qkv_size: features of queries, keys and values together.
        attended_size: features of all query heads.
        num_layers: how many there are.
    """

    def __init__(self, layers: Sequence[LayerPhases]) -> None:
        first = layers[0]
        self.num_layers = len(layers)
        self.hidden_size = first.qkv.in_features
        self.qkv_size = first.qkv.out_features
        self.attended_size = first.output.in_features
        self._inner_size = first.down.in_features
        adds_normed = any(layer.output_norm is not None for layer in layers)
        self._added_size = self.hidden_size if adds_normed else 0
        self._normed_dims = {len(n) for layer in layers for n in _norms(layer, _HEAD_NORMS)}
        self._phases = tuple(layers)  # what the structures below point into
        self._layers = (LayerStruct * len(layers))(*map(_describe, layers))
        self._library: CpuLibrary = load_library()

    @classmethod
    def of(cls, phases: Sequence[LayerPhases | None]) -> "NativeStack | None":
        """The stack of these layers; None where a kernel cannot run one of them."""
        layers = [each for each in phases if each is not None]
        shapes = {_shapes(each) for each in layers}
        if len(layers) < len(phases) or len(shapes) != 1 or None in shapes:
            return None
        return cls(layers)

    def fits(self, kv_heads: int, head_dim: int, rotations: Sequence[Rotary]) -> bool:
        """Whether the layers can run over a cache of such heads, by rotations that are alike."""
        return (
            self.qkv_size == self.attended_size + 2 * kv_heads * head_dim
            and len({(rotary.dim, rotary.interleaved) for rotary in rotations}) <= 1
            and self._normed_dims <= {head_dim}
        )

    def run(
        self,
        hidden: Tensor,
        step: "NativeStep",
        rotations: Sequence[Rotary],
        wanted: Tensor | None = None,
    ) -> None:
        """Advance the residual stream by all layers.

        Args:
            hidden: ``[tokens, hidden_size]`` float32, contiguous; changed in place.
            step: what the layers attend to.
            rotations: the step's, of which each layer uses one or none.
            wanted: see `AttentionBackend.run_layers`.

        Raises:
            ShapeError: the step's cache has too few layers, or there is no such token.
        """
        step.check_layers(self.num_layers)
        tokens = hidden.shape[0]
        parts = self._room(tokens, zeros=step.has_idle_tokens)
        angles = [as_float32(rotary.freqs_cis) for rotary in rotations]
        call = StackStruct(
            layers=self._layers,
            num_layers=self.num_layers,
            attention=ctypes.pointer(step.first_layer(parts.qkv, parts.attended)),
            key_layer_bytes=step.layer_bytes[0],
            value_layer_bytes=step.layer_bytes[1],
            rotations=(c_void_p * len(angles))(*(table.data_ptr() for table in angles)),
            hidden=hidden.data_ptr(),
            qkv=parts.qkv,
            attended=parts.attended,
            inner=parts.inner,
            added=parts.added if self._added_size else None,
        )
        if wanted is not None and self._can_part(len(wanted), tokens):
            rows = wanted.tolist()
            if rows and not 0 <= min(rows) <= max(rows) < tokens:
                raise ShapeError(f"wanted names tokens beyond the {tokens} of the step.")
            call.wanted = (c_int64 * max(1, len(rows)))(*rows)
            call.num_wanted = len(rows)
        self._library.run_stack(ctypes.byref(call))

    def _can_part(self, num_wanted: int, tokens: int) -> bool:
        """Whether leaving the others out pays, and the wanted fit where queries and keys were."""
        size = num_wanted * (self.attended_size + self.hidden_size)
        return 2 * num_wanted <= tokens and size <= tokens * self.qkv_size

    def _room(self, tokens: int, *, zeros: bool) -> "_Room":
        """Memory to work in."""
        sizes = (self.qkv_size, self.attended_size, self._inner_size, self._added_size)
        ends = [*accumulate(-(-tokens * size // _LINE) * _LINE for size in sizes)]
        memory = (torch.zeros if zeros else torch.empty)(ends[-1])
        first = memory.data_ptr()
        return _Room(memory, first, *(first + 4 * end for end in ends[:3]))


class _Room(NamedTuple):
    """What layers work in; addresses of float32.

    Attributes:
        memory: what is there.
        qkv: ``[tokens, qkv_size]``.
        attended: ``[tokens, attended_size]``.
        inner: ``[tokens, inner_size]``.
        added: ``[tokens, hidden_size]``, where a layer norms what it adds.
    """

    memory: Tensor
    qkv: int
    attended: int
    inner: int
    added: int


def _shapes(layer: LayerPhases) -> tuple[int, ...] | None:
    """What must be alike in all layers; None for a layer that no kernel runs."""
    weights = (layer.qkv, layer.output, layer.gate_up, layer.down)
    hidden = layer.qkv.in_features
    fits = (
        layer.output.out_features == layer.gate_up.in_features == layer.down.out_features == hidden
        and layer.gate_up.out_features == 2 * layer.down.in_features
        and (layer.output_norm is None) == (layer.down_norm is None)
        and all(norm.numel() == hidden for norm in _norms(layer, _HIDDEN_NORMS))
        and all(
            norm.is_cpu and norm.dtype is torch.float32 and norm.is_contiguous()
            for norm in _norms(layer, _HIDDEN_NORMS + _HEAD_NORMS)
        )
    )
    if not fits or not all(isinstance(weight, PackedWeight) for weight in weights):
        return None
    is_paired = tuple(isinstance(w, PackedWeight) and w.is_paired for w in weights)
    if is_paired != (False, False, True, False):
        return None
    return (hidden, layer.qkv.out_features, layer.output.in_features, layer.down.in_features)


def _norms(layer: LayerPhases, names: Sequence[str]) -> list[Tensor]:
    given = (getattr(layer, name) for name in names)
    return [norm for norm in given if norm is not None]


def _describe(layer: LayerPhases) -> LayerStruct:
    return LayerStruct(
        window=layer.window or 0,
        eps=layer.eps,
        scale=layer.scale or 0.0,
        softcap=layer.softcap or 0.0,
        activation=GATES[layer.activation],
        rotation=-1 if layer.rotation is None else layer.rotation,
        **{
            name: norm.data_ptr()
            for name in _HIDDEN_NORMS + _HEAD_NORMS
            for norm in _norms(layer, (name,))
        },
        **{
            name: ctypes.pointer(weight.struct)
            for name, weight in (
                ("qkv", layer.qkv),
                ("output", layer.output),
                ("gate_up", layer.gate_up),
                ("down", layer.down),
            )
            if isinstance(weight, PackedWeight)
        },
    )
