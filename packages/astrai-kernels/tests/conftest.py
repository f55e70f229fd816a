import functools

import pytest
import torch

from astrai_kernels.backends import fallback
from astrai_kernels.cpu import library
from astrai_kernels.cpu.compiler import compiled_library
from astrai_kernels.errors import NativeUnavailableError


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch):
    """Fallbacks are reported once per process; each test starts as a new one."""
    monkeypatch.setattr(fallback, "_reported", set())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@functools.cache
def load(portable):
    try:
        return library.CpuLibrary(compiled_library(portable=portable))
    except NativeUnavailableError as error:
        return error


@pytest.fixture(params=["native", "portable"])
def kernels(request, monkeypatch):
    """The compiled kernels, for this machine's instruction set and for none, on two threads."""
    loaded = load(request.param == "portable")
    if isinstance(loaded, NativeUnavailableError):
        pytest.skip(str(loaded))
    loaded.set_num_threads(2)
    monkeypatch.setattr(library, "_loaded", loaded)
    return loaded


@pytest.fixture
def no_kernels(monkeypatch):
    """A machine without a compiler."""
    error = NativeUnavailableError("no C++ compiler was found.")
    monkeypatch.setattr(library, "_loaded", error)
