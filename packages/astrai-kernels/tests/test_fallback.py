import warnings

import pytest

from astrai_kernels import ATTN_BACKEND, BackendFallbackWarning
from astrai_kernels.backends.fallback import warn_of_fallback


def test_each_reason_is_told_once_for_each_backend():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for backend in (ATTN_BACKEND.CUDA, ATTN_BACKEND.CPU, ATTN_BACKEND.CUDA):
            for reason in ("one.", "two."):
                warn_of_fallback(backend, reason)
    assert [str(warning.message) for warning in told] == [
        f"The attention backend '{backend}' falls back to 'torch_native': {reason}"
        for backend in ("cuda", "cpu")
        for reason in ("one.", "two.")
    ]


def test_a_warning_turned_into_an_error_is_raised_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BackendFallbackWarning):
            warn_of_fallback(ATTN_BACKEND.CUDA, "why.")
        warn_of_fallback(ATTN_BACKEND.CUDA, "why.")
