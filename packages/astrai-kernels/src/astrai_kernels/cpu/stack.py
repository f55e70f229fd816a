"""A decoder's layers, laid out once for the native kernel that runs all of them in one call."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from astrai_kernels.cpu.library import (
    AttentionStruct,
    CpuLibrary,
    LayerStruct,
    StackStruct,
    load_library,
)
from astrai_kernels.cpu.weights import PackedWeight
from astrai_kernels.ops.phases import LayerPhases


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

    def run(
        self,
        hidden: Tensor,
        qkv: Tensor,
        attention: AttentionStruct,
        attended: Tensor,
        layer_bytes: tuple[int, int],
    ) -> None:
        """Advance the residual stream by all layers.

        Args:
            hidden: ``[tokens, hidden_size]`` float32, contiguous; changed in place.
            qkv: ``[tokens, qkv_size]`` float32 to work in, whose parts ``attention`` reads.
            attention: the first layer's attention; its output is ``attended``.
            attended: ``[tokens, attended_size]`` float32 to work in; zero for idle tokens.
            layer_bytes: from one layer's keys to the next one's, and from values to values.
        """
        inner = torch.empty(hidden.shape[0], self._inner_size)
        call = StackStruct(
            layers=self._layers,
            num_layers=self.num_layers,
            attention=ctypes.pointer(attention),
            key_layer_bytes=layer_bytes[0],
            value_layer_bytes=layer_bytes[1],
            hidden=hidden.data_ptr(),
            qkv=qkv.data_ptr(),
            attended=attended.data_ptr(),
            inner=inner.data_ptr(),
        )
        self._library.run_stack(ctypes.byref(call))


def _shapes(layer: LayerPhases) -> tuple[int, ...] | None:
    """What must be alike in all layers; None for a layer that no kernel runs."""
    weights = (layer.qkv, layer.output, layer.gate_up, layer.down)
    norms = (layer.attention_norm, layer.mlp_norm)
    hidden = layer.qkv.in_features
    fits = (
        layer.output.out_features == layer.gate_up.in_features == layer.down.out_features == hidden
        and layer.gate_up.out_features == 2 * layer.down.in_features
        and all(norm.dtype is torch.float32 and norm.is_contiguous() for norm in norms)
        and all(norm.is_cpu and norm.shape == (hidden,) for norm in norms)
    )
    if not fits or not all(isinstance(weight, PackedWeight) for weight in weights):
        return None
    is_paired = tuple(isinstance(w, PackedWeight) and w.is_paired for w in weights)
    if is_paired != (False, False, True, False):
        return None
    return (hidden, layer.qkv.out_features, layer.output.in_features, layer.down.in_features)


def _describe(layer: LayerPhases) -> LayerStruct:
    return LayerStruct(
        attention_norm=layer.attention_norm.data_ptr(),
        mlp_norm=layer.mlp_norm.data_ptr(),
        window=layer.window or 0,
        eps=layer.eps,
        is_rotated=layer.is_rotated,
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
