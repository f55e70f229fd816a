"""Attention and rotary kernels over a paged K/V cache, with torch fallbacks.

The attention contract is `AttentionBackend`; `select_backend` gives the one that serves a device.
`astrai_kernels.ops` has the other phases of a decoder layer.
"""

from astrai_kernels import ops
from astrai_kernels._env import cache_dir
from astrai_kernels.backends.base import (
    ATTN_BACKEND,
    AttentionBackend,
    AttentionCache,
    AttentionShape,
)
from astrai_kernels.backends.cpu import CpuBackend
from astrai_kernels.backends.cuda import CudaBackend
from astrai_kernels.backends.selection import (
    BackendChoice,
    Rejection,
    Selection,
    attn_backend,
    requested_backend,
    select_backend,
)
from astrai_kernels.backends.torch_native import TorchNativeBackend
from astrai_kernels.cpu.library import set_num_threads
from astrai_kernels.cpu.library import unavailable_reason as native_unavailable_reason
from astrai_kernels.errors import (
    BackendFallbackWarning,
    BackendUnavailableError,
    CudaUnavailableError,
    EnvironmentValueError,
    KernelCacheWarning,
    KernelCompileError,
    KernelLaunchError,
    KernelsError,
    NativeUnavailableError,
    PositionError,
    ShapeError,
)
from astrai_kernels.layer_stack import Layer, LayerStack
from astrai_kernels.rotary import Rotary, RotaryEmbedding, apply_rotary_emb

__all__ = [
    "ATTN_BACKEND",
    "AttentionBackend",
    "AttentionCache",
    "AttentionShape",
    "BackendChoice",
    "BackendFallbackWarning",
    "BackendUnavailableError",
    "CpuBackend",
    "CudaBackend",
    "CudaUnavailableError",
    "EnvironmentValueError",
    "KernelCacheWarning",
    "KernelCompileError",
    "KernelLaunchError",
    "KernelsError",
    "Layer",
    "LayerStack",
    "NativeUnavailableError",
    "PositionError",
    "Rejection",
    "Rotary",
    "RotaryEmbedding",
    "Selection",
    "ShapeError",
    "TorchNativeBackend",
    "apply_rotary_emb",
    "attn_backend",
    "cache_dir",
    "native_unavailable_reason",
    "ops",
    "requested_backend",
    "select_backend",
    "set_num_threads",
]
