"""The native CPU backend: attention by the compiled kernels, read through the page table."""

import ctypes
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from astrai_kernels.backends.base import ATTN_BACKEND, AttentionBackend, AttentionCache
from astrai_kernels.backends.fallback import warn_of_fallback
from astrai_kernels.backends.inputs import check_shapes, weakly
from astrai_kernels.backends.native_step import (
    NativeStep,
    StepShape,
    unsupported,
    unsupported_cache,
)
from astrai_kernels.backends.torch_native import TorchNativeBackend
from astrai_kernels.cpu.library import load_library, unavailable_reason
from astrai_kernels.errors import BackendUnavailableError
from astrai_kernels.layer_stack import LayerStack
from astrai_kernels.rotary import Rotary


class CpuBackend(AttentionBackend):
    """Attention by native kernels, delegating to `TorchNativeBackend` what they cannot serve.

    A request's result does not depend on what runs beside it. What a step's layers share is
    checked and prepared in its first layer, and kept while the same cache object is passed. An
    instance serves one thread at a time.

    Args:
        strict: raise instead of delegating.
    """

    name: ClassVar[ATTN_BACKEND] = ATTN_BACKEND.CPU

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._fallback = TorchNativeBackend()
        self._prepared: Callable[[], AttentionCache | None] | None = None
        self._steps: dict[tuple[object, ...], NativeStep] = {}

    @classmethod
    def availability(cls, device: torch.device) -> str | None:
        """Say why the kernels cannot run on a device; the first call may compile them."""
        if device.type != "cpu":
            return f"its kernels run on the CPU, and the device is {str(device)!r}."
        return unavailable_reason()

    def attend(  # noqa: PLR0913 - see AttentionBackend
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        layer_id: int,
        *,
        rotary: Rotary | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend.attend`.

        Raises:
            BackendUnavailableError: the backend is strict, and the kernels cannot serve the call.
            ShapeError: the tensors do not fit together.
        """
        reason = self.availability(q.device) or unsupported(q, k, v, cache)
        if reason is not None:
            if self._strict:
                raise BackendUnavailableError(self.name.value, reason)
            warn_of_fallback(self.name, reason)
            return self._fallback.attend(
                q, k, v, cache, layer_id, rotary=rotary, scale=scale, softcap=softcap, window=window
            )
        step = self._step(q, k, v, cache, rotary, window)
        out = (torch.zeros if step.has_idle_tokens else torch.empty)(q.shape, dtype=q.dtype)
        call = step.layer(q, k, v, out, layer_id)
        call.scale = q.shape[-1] ** -0.5 if scale is None else scale
        call.softcap = softcap or 0.0
        load_library().attend(ctypes.byref(call))
        return out

    def run_layers(
        self,
        layers: LayerStack,
        hidden: Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        *,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionBackend.run_layers`: in one call where kernels can run every layer."""
        stack = layers.native if hidden.is_cpu and hidden.dtype is torch.float32 else None
        kv_heads, head_dim = cache.k_buffer.shape[2:]
        if stack is None or not stack.fits(kv_heads, head_dim, rotations):
            return super().run_layers(layers, hidden, rotations, cache)
        if unsupported_cache(cache, head_dim) is not None:
            return super().run_layers(layers, hidden, rotations, cache)
        num_heads = stack.attended_size // head_dim
        shape = StepShape(hidden.shape[0], num_heads, kv_heads, head_dim, hidden.dtype)
        step = NativeStep(shape, cache, rotations[0] if rotations else None, None)
        hidden = hidden if hidden.is_contiguous() else hidden.contiguous()
        stack.run(hidden, step, rotations, wanted)
        return hidden

    def _step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        rotary: Rotary | None,
        window: int | None,
    ) -> NativeStep:
        if self._prepared is None or self._prepared() is not cache:
            self._prepared, self._steps = weakly(cache), {}
        key = (q.shape, k.shape, v.shape, q.dtype, id(rotary), window)
        if key not in self._steps:
            check_shapes(q, k, v, cache, window)
            shape = StepShape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.dtype)
            self._steps[key] = NativeStep(shape, cache, rotary, window)
        return self._steps[key]
