"""Which attention backend runs: explicit choice, then ``ASTRAI_BACKEND``, then automatic."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from astrai_kernels import _env
from astrai_kernels.backends.base import ATTN_BACKEND, AttentionBackend
from astrai_kernels.backends.cpu import CpuBackend
from astrai_kernels.backends.cuda import CudaBackend
from astrai_kernels.backends.torch_native import TorchNativeBackend
from astrai_kernels.errors import BackendUnavailableError


@dataclass(frozen=True)
class BackendChoice:
    """A backend somebody asked for.

    Attributes:
        backend: which one.
        strict: raise rather than fall back when it cannot serve.
    """

    backend: ATTN_BACKEND
    strict: bool = False


@dataclass(frozen=True)
class Rejection:
    """A backend whose own kernels do not serve, and why.

    Attributes:
        name: the backend's name.
        reason: a sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """The backend that serves a device.

    Attributes:
        backend: ready to be called.
        name: its name.
        rejected: the backends considered before it, and the chosen one itself when it will
            delegate, each with its reason.
    """

    backend: AttentionBackend
    name: str
    rejected: tuple[Rejection, ...] = ()


_BACKENDS: dict[ATTN_BACKEND, type[AttentionBackend]] = {
    ATTN_BACKEND.CUDA: CudaBackend,
    ATTN_BACKEND.CPU: CpuBackend,
    ATTN_BACKEND.TORCH_NATIVE: TorchNativeBackend,
}
_PREFERENCE = tuple(_BACKENDS)
"""Automatic selection takes the first that can serve."""

_requested: ContextVar[BackendChoice | None] = ContextVar("astrai_attn_backend", default=None)


@contextmanager
def attn_backend(backend: ATTN_BACKEND, *, strict: bool = False) -> Iterator[BackendChoice]:
    """Choose the attention backend of everything called inside the ``with`` block.

    Nests; holds for the current thread or task only.

    Args:
        backend: the backend.
        strict: raise `BackendUnavailableError` where it cannot serve, rather than fall back.

    Yields:
        The choice, as `requested_backend` reports it.
    """
    choice = BackendChoice(backend, strict)
    token = _requested.set(choice)
    try:
        yield choice
    finally:
        _requested.reset(token)


def requested_backend() -> BackendChoice | None:
    """The choice of the innermost `attn_backend` around the caller, or None."""
    return _requested.get()


def choice_in_force() -> BackendChoice | None:
    """The choice of `attn_backend`, else that of ``ASTRAI_BACKEND``, else None.

    Raises:
        EnvironmentValueError: ``ASTRAI_BACKEND`` names no backend.
    """
    requested = requested_backend()
    if requested is not None:
        return requested
    name = _env.backend_name([member.value for member in ATTN_BACKEND])
    return None if name is None else BackendChoice(ATTN_BACKEND(name))


def select_backend(device: torch.device | str, *, choice: BackendChoice | None = None) -> Selection:
    """Select the attention backend for a device.

    Args:
        device: where the tensors will be.
        choice: an explicit choice; None asks `requested_backend`, then ``ASTRAI_BACKEND``.

    Returns:
        A fresh backend, and the reasons against the others.

    Raises:
        BackendUnavailableError: the choice is strict and cannot run here.
        EnvironmentValueError: ``ASTRAI_BACKEND`` names no backend.
    """
    device = torch.device(device)
    choice = choice or choice_in_force()
    if choice is not None:
        return _select_chosen(choice, device)
    rejected: list[Rejection] = []
    for member in _PREFERENCE:
        reason = _BACKENDS[member].availability(device)
        if reason is None:
            return Selection(_BACKENDS[member](), member.value, tuple(rejected))
        rejected.append(Rejection(member.value, reason))
    raise AssertionError("torch serves every device")


def _select_chosen(choice: BackendChoice, device: torch.device) -> Selection:
    name = choice.backend.value
    reason = _BACKENDS[choice.backend].availability(device)
    if reason is None:
        return Selection(_make(choice), name)
    if choice.strict:
        raise BackendUnavailableError(name, reason)
    # A native backend delegates by itself, and says why.
    return Selection(_make(choice), name, (Rejection(name, reason),))


def _make(choice: BackendChoice) -> AttentionBackend:
    if choice.backend is ATTN_BACKEND.CUDA:
        return CudaBackend(strict=choice.strict)
    if choice.backend is ATTN_BACKEND.CPU:
        return CpuBackend(strict=choice.strict)
    return TorchNativeBackend()
