import pytest
from emulator import ORDERS, Emulator, build
from kernel_calls import Kernels


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """The kernels, compiled once for all tests."""
    return Emulator(build(tmp_path_factory.mktemp("emulator")))


@pytest.fixture(params=ORDERS, ids=str)
def kernels(request, emulator):
    """The kernels under several schedules."""
    return Kernels(emulator, request.param)


@pytest.fixture
def plain(emulator):
    """The kernels in the simplest order."""
    return Kernels(emulator)
