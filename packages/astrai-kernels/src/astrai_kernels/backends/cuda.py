"""The CUDA backend: when its kernels serve, and what happens when they cannot."""

from typing import ClassVar

import torch
from torch import Tensor

from astrai_kernels.backends.base import ATTN_BACKEND, AttentionBackend, AttentionCache
from astrai_kernels.backends.fallback import warn_of_fallback
from astrai_kernels.backends.torch_native import TorchNativeBackend
from astrai_kernels.errors import BackendUnavailableError
from astrai_kernels.rotary import Rotary


class CudaBackend(AttentionBackend):
    """Attention by CUDA kernels, delegating to `TorchNativeBackend` what they cannot serve.

    This release ships no CUDA kernels: every call is delegated, and the first one warns with
    the reason.

    Args:
        strict: raise instead of delegating.
    """

    name: ClassVar[ATTN_BACKEND] = ATTN_BACKEND.CUDA

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._fallback = TorchNativeBackend()

    @classmethod
    def availability(cls, device: torch.device) -> str:
        """Say why CUDA kernels cannot run on a device, in a sentence."""
        if device.type != "cuda":
            return f"its kernels need an NVIDIA GPU, and the device is {str(device)!r}."
        if not torch.cuda.is_available():
            return "its kernels need an NVIDIA GPU, and torch finds none."
        return "this release of astrai-kernels has no CUDA kernels."

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
            BackendUnavailableError: the backend is strict, so it may not delegate.
            ShapeError: the tensors do not fit together.
        """
        reason = self.availability(q.device)
        if self._strict:
            raise BackendUnavailableError(self.name.value, reason)
        warn_of_fallback(self.name, reason)
        return self._fallback.attend(
            q, k, v, cache, layer_id, rotary=rotary, scale=scale, softcap=softcap, window=window
        )
