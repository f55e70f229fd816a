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
    return use_kernels(request.param, monkeypatch)


def use_kernels(kind, monkeypatch):
    """Let this test run on the native or the portable kernels, whatever the process loaded."""
    loaded = load(kind == "portable")
    if isinstance(loaded, NativeUnavailableError):
        pytest.skip(str(loaded))
    loaded.set_num_threads(2)
    monkeypatch.setattr(library, "_loaded", loaded)
    return loaded


@pytest.fixture(params=["native", "portable", "torch"])
def implementation(request, monkeypatch):
    """Each implementation of an op that chooses by what is loaded."""
    if request.param == "torch":
        monkeypatch.setattr(library, "_loaded", None)
    else:
        use_kernels(request.param, monkeypatch)
    return request.param


@pytest.fixture
def no_kernels(monkeypatch):
    """A machine without a compiler."""
    error = NativeUnavailableError("no C++ compiler was found.")
    monkeypatch.setattr(library, "_loaded", error)
