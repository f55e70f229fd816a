"""Loading and launching kernels, on a fake driver."""

import ctypes
import threading

import pytest
import torch

from astrai_kernels.cuda import launcher
from astrai_kernels.cuda.compiler import Specialization
from astrai_kernels.cuda.geometry import BlockShape
from astrai_kernels.cuda.launcher import Launch, loaded_kernel
from astrai_kernels.errors import CudaUnavailableError, KernelCompileError, KernelLaunchError


class Parameters(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int64),)


KERNEL = Specialization("store", (("VALUE", "7"),))
LAUNCH = Launch(KERNEL, BlockShape(128, 0))


def test_a_launch_passes_on_everything(fake_driver):
    loaded_kernel(Launch(KERNEL, BlockShape(128, 2048)), 1).run((3, 2, 1), Parameters(-5))
    ((function, *arguments),) = fake_driver.named("cuLaunchKernel")
    assert function.startswith("cuKernelGetFunction")
    assert arguments == [3, 2, 1, 128, 1, 1, 2048, 1001, bytes(Parameters(-5))]
    assert fake_driver.named("cuLibraryLoadData") == [(b"code", [], [], 0, [], [], 0)]
    assert fake_driver.named("cuLibraryGetKernel")[0][1] == b"astrai_entry"


def test_a_kernel_is_loaded_once_for_each_gpu(fake_driver):
    first = loaded_kernel(LAUNCH, 0)
    assert loaded_kernel(LAUNCH, 0) is first
    assert loaded_kernel(LAUNCH, 1) is not first
    assert len(fake_driver.named("cuLibraryLoadData")) == 2


def test_a_grid_without_blocks_is_not_launched(fake_driver):
    loaded_kernel(LAUNCH, 0).run((0, 4, 1), Parameters())
    assert fake_driver.named("cuLaunchKernel") == []


@pytest.mark.parametrize(("shared_bytes", "is_allowed"), [(49152, False), (49153, True)])
def test_more_shared_memory_than_usual_is_asked_for(fake_driver, shared_bytes, is_allowed):
    loaded_kernel(Launch(KERNEL, BlockShape(128, shared_bytes)), 0)
    attributes = [arguments[:2] for arguments in fake_driver.named("cuKernelSetAttribute")]
    assert attributes == ([(8, shared_bytes)] if is_allowed else [])


def test_each_new_thread_is_given_the_context_once(fake_driver):
    kernel = loaded_kernel(LAUNCH, 0)
    for _ in range(2):
        kernel.run((1, 1, 1), Parameters())
    assert len(fake_driver.named("cuCtxSetCurrent")) == 1
    thread = threading.Thread(target=kernel.run, args=((1, 1, 1), Parameters()))
    thread.start()
    thread.join()
    assert len(fake_driver.named("cuCtxSetCurrent")) == 2


def test_launch_and_loading_happen_on_the_kernels_gpu(fake_driver, monkeypatch):
    entered = []

    class Device:
        def __init__(self, number):
            entered.append(number)

        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(torch.cuda, "device", Device)
    loaded_kernel(LAUNCH, 3).run((1, 1, 1), Parameters())
    assert entered == [3, 3]


def test_a_refused_launch_names_kernel_and_status(fake_driver):
    kernel = loaded_kernel(LAUNCH, 0)
    fake_driver.failing.add("cuLaunchKernel")
    with pytest.raises(KernelLaunchError, match=r"'store' \(CUDA_ERROR_MADE_UP\).*128 threads"):
        kernel.run((1, 1, 1), Parameters())


def test_a_kernel_that_cannot_be_loaded_is_not_tried_again(fake_driver):
    fake_driver.failing.add("cuLibraryLoadData")
    for _ in range(2):
        with pytest.raises(CudaUnavailableError, match=r"load the kernel 'store' .*MADE_UP"):
            loaded_kernel(LAUNCH, 0)
        fake_driver.failing.clear()


def test_a_kernel_that_cannot_be_compiled_is_not_tried_again(fake_driver, monkeypatch):
    compiled = []

    def refuse(kernel, target):
        compiled.append((kernel, target))
        raise KernelCompileError(kernel.name, "line 1: no")

    monkeypatch.setattr(launcher, "compiled_kernel", refuse)
    for _ in range(2):
        with pytest.raises(KernelCompileError, match="line 1: no"):
            loaded_kernel(LAUNCH, 0)
    assert compiled == [(KERNEL, "sm_90")]


def test_nothing_is_loaded_while_a_graph_is_captured(fake_driver, monkeypatch):
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(
            KernelLaunchError, match=r"'store' is not loaded yet.*call .*warmup\(\)"
        ):
            loaded_kernel(LAUNCH, 0)
    kernel = loaded_kernel(LAUNCH, 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert loaded_kernel(LAUNCH, 0) is kernel


def test_many_threads_load_a_kernel_once(fake_driver):
    threads = [threading.Thread(target=loaded_kernel, args=(LAUNCH, 0)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake_driver.named("cuLibraryLoadData")) == 1
