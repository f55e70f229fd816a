import contextlib
import ctypes
import functools
import threading

import pytest
import torch

from astrai_kernels.backends import fallback
from astrai_kernels.cpu import library
from astrai_kernels.cpu.compiler import compiled_library
from astrai_kernels.cuda import launcher
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


class FakeDriver:
    """What the launch layer needs of ``cuda.bindings.driver``; remembers every call.

    Attributes:
        calls: names and arguments.
        failing: names of calls that fail, each with its status.
    """

    class Status(int):
        name = "CUDA_ERROR_MADE_UP"

    class CUfunction_attribute:  # noqa: N801 - the driver's name
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self):
        self.calls = []
        self.failing = set()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            if name in self.failing:
                return (self.Status(1),)
            if name == "cuLaunchKernel":
                arguments = self._with_parameters(arguments)
                self.calls.append((name, arguments))
                return (self.Status(0),)
            self.calls.append((name, arguments))
            return self.Status(0), f"{name}:{len(self.calls)}"

        return call

    def _with_parameters(self, arguments):
        """As the driver does, read the parameters before the call returns."""
        *others, address, extra = arguments
        assert extra == 0
        size = self.parameter_bytes
        return (*others, ctypes.string_at(ctypes.c_void_p.from_address(address).value, size))

    parameter_bytes = 8

    def named(self, name):
        return [arguments for call, arguments in self.calls if call == name]


@pytest.fixture
def fake_driver(monkeypatch):
    """A GPU of compute capability 9.0 as far as the launch layer can tell; kernels are not run."""
    fake = FakeDriver()
    monkeypatch.setattr(launcher, "driver", lambda: fake)
    monkeypatch.setattr(launcher, "compiled_kernel", lambda kernel, target: b"code")
    monkeypatch.setattr(launcher, "target_for", lambda arch: f"sm_{arch}")
    monkeypatch.setattr(launcher, "_loaded", {})
    monkeypatch.setattr(launcher, "_thread", threading.local())
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: 1000 + device, raising=False
    )
    return fake
