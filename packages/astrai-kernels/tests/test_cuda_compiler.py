"""Compiling kernels by NVRTC, which needs no GPU, and keeping the results."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from astrai_kernels.cuda import bindings, compiler
from astrai_kernels.cuda.compiler import Specialization, Target, compiled_kernel, target_for
from astrai_kernels.errors import CudaUnavailableError, KernelCacheWarning, KernelCompileError

TINY = {
    "entry.cu": b'#include "store.cuh"\nextern "C" __global__ void k(int* p) { store(p, VALUE); }',
    "store.cuh": b"inline __device__ void store(int* p, int v) { *p = v; }",
}
KERNEL = Specialization("store", (("VALUE", "7"),))
SM_90 = Target(90)


@pytest.fixture(autouse=True)
def nvrtc():
    try:
        return bindings.nvrtc()
    except CudaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    current = dict(TINY)
    monkeypatch.setattr(compiler, "_sources", lambda: current)
    return current


@pytest.fixture
def compilations(monkeypatch):
    """The names of kernels compiled."""
    names = []
    compile_source = compiler.compile_source

    def counting(name, options, **rest):
        names.append(name)
        return compile_source(name, options, **rest)

    monkeypatch.setattr(compiler, "compile_source", counting)
    return names


def test_a_kernel_is_compiled_once_to_machine_code(compilations, folder):
    code = compiled_kernel(KERNEL, SM_90)
    assert code.startswith(b"\x7fELF")
    assert compiled_kernel(KERNEL, SM_90) == code
    assert compilations == ["store"]
    (entry,) = compiler.cached_kernels()
    assert entry.parent == folder
    assert entry.name.startswith("cuda-store-sm_90-")
    assert [left.name for left in folder.iterdir()] == [entry.name]


def test_ptx_is_text_that_names_its_architecture():
    code = compiled_kernel(KERNEL, Target(90, is_ptx=True))
    assert b".target sm_90" in code
    assert compiler.cached_kernels()[0].suffix == ".ptx"


def test_whatever_decides_the_code_is_in_the_key(compilations, sources, monkeypatch):
    compiled_kernel(KERNEL, SM_90)
    compiled_kernel(Specialization("store", (("VALUE", "8"),)), SM_90)
    compiled_kernel(KERNEL, Target(80))
    sources["store.cuh"] += b"\n"
    compiled_kernel(KERNEL, SM_90)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "99.0")
    compiled_kernel(KERNEL, SM_90)
    assert len(compilations) == len(compiler.cached_kernels()) == 5


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: b"", lambda c: b"x" + c[1:]])
def test_a_damaged_entry_is_made_anew(compilations, damage):
    code = compiled_kernel(KERNEL, SM_90)
    (entry,) = compiler.cached_kernels()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compiled_kernel(KERNEL, SM_90) == code
    assert compiled_kernel(KERNEL, SM_90) == code
    assert len(compilations) == 2


def test_many_threads_at_once_get_the_same_whole_code():
    with ThreadPoolExecutor(8) as threads:
        codes = set(threads.map(lambda _: compiled_kernel(KERNEL, SM_90), range(24)))
    assert len(codes) == len(compiler.cached_kernels()) == 1


def test_the_compilers_message_is_in_the_error(sources, folder):
    sources["entry.cu"] += b"\nnonsense;"
    with pytest.raises(
        KernelCompileError, match=r"kernel 'store':\n.*entry\.cu\(3\): error"
    ) as raised:
        compiled_kernel(KERNEL, SM_90)
    assert "nonsense" in raised.value.log
    assert compiler.cached_kernels() == []


def test_a_wrong_option_is_an_error_too():
    with pytest.raises(KernelCompileError, match="no-such-option"):
        compiler.compile_source("store", ("--no-such-option",))


def test_what_the_assembler_says_can_be_asked_for():
    options = ("--gpu-architecture=sm_90", "-DVALUE=1", "--ptxas-options=-v")
    assert "registers" in compiler.compile_source("store", options)[1]


def test_a_folder_that_cannot_be_written_costs_only_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(KernelCacheWarning, match=r"file/kernels cannot be written .* ASTRAI_CACHE"):
        assert compiled_kernel(KERNEL, SM_90).startswith(b"\x7fELF")


def test_the_target_is_the_gpus_own_where_known():
    assert target_for(90) == SM_90
    assert SM_90.name == "sm_90"


@pytest.mark.parametrize(("arch", "newest"), [(100, 90), (89, 86), (121, 90)])
def test_a_gpu_newer_than_the_compiler_gets_ptx(monkeypatch, arch, newest):
    monkeypatch.setattr(compiler, "known_archs", lambda: [75, 80, 86, 90])
    assert target_for(arch) == Target(newest, is_ptx=True)
    assert target_for(arch).name == f"compute_{newest}"


@pytest.mark.parametrize(("arch", "known"), [(75, [75, 80]), (60, [75, 80]), (80, [86, 90])])
def test_a_gpu_too_old_is_refused(monkeypatch, arch, known):
    monkeypatch.setattr(compiler, "known_archs", lambda: known)
    with pytest.raises(CudaUnavailableError, match=rf"this GPU has {arch / 10}"):
        target_for(arch)


@pytest.fixture
def fresh_imports(monkeypatch):
    """Bindings as in a process that has not asked for them yet."""
    monkeypatch.setattr(bindings, "nvrtc", bindings.nvrtc.__wrapped__)
    monkeypatch.setattr(bindings, "driver", bindings.driver.__wrapped__)


@pytest.mark.usefixtures("fresh_imports")
@pytest.mark.parametrize("name", ["nvrtc", "driver"])
def test_missing_bindings_say_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, f"cuda.bindings.{name}", None)
    with pytest.raises(
        CudaUnavailableError, match=rf"cuda.bindings.{name} .*astrai-kernels\[cu13\]"
    ):
        getattr(bindings, name)()


@pytest.mark.usefixtures("fresh_imports")
@pytest.mark.parametrize(
    ("name", "call", "message"),
    [("nvrtc", "nvrtcVersion", "NVRTC cannot be loaded"), ("driver", "cuInit", "driver cannot be")],
)
def test_missing_libraries_are_told_in_a_sentence(monkeypatch, name, call, message):
    def missing(*arguments):
        raise RuntimeError("It is not here. Look elsewhere.\nMore.")

    monkeypatch.setitem(sys.modules, f"cuda.bindings.{name}", SimpleNamespace(**{call: missing}))
    with pytest.raises(CudaUnavailableError, match=rf"{message}.*\(It is not here\); install"):
        getattr(bindings, name)()


@pytest.mark.usefixtures("fresh_imports")
def test_a_driver_without_gpu_is_told_by_its_status(monkeypatch):
    class Status(int):
        name = "CUDA_ERROR_NO_DEVICE"

    fake = SimpleNamespace(cuInit=lambda flags: (Status(100),))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    with pytest.raises(CudaUnavailableError, match=r"\(CUDA_ERROR_NO_DEVICE\)"):
        bindings.driver()
