"""Telling the user, once, that another backend serves than the one they chose."""

import warnings

from astrai_kernels.backends.base import ATTN_BACKEND
from astrai_kernels.errors import BackendFallbackWarning

_reported: set[tuple[ATTN_BACKEND, str]] = set()


def warn_of_fallback(chosen: ATTN_BACKEND, reason: str) -> None:
    """Warn that `torch_native` serves in place of a chosen backend, once per reason.

    Args:
        chosen: the backend that cannot serve.
        reason: why, as a sentence.
    """
    if (chosen, reason) in _reported:
        return
    # Noted first: where warnings are errors, the next call must still be served.
    _reported.add((chosen, reason))
    warnings.warn(
        f"The attention backend {chosen.value!r} falls back to "
        f"{ATTN_BACKEND.TORCH_NATIVE.value!r}: {reason}",
        BackendFallbackWarning,
        stacklevel=3,
    )
