import runpy
import sys
from types import SimpleNamespace

import pytest
import torch

from astrai_kernels import doctor
from astrai_kernels.__main__ import main
from astrai_kernels.cuda import compiler
from astrai_kernels.cuda.catalog import specializations
from astrai_kernels.cuda.compiler import Target
from astrai_kernels.cuda.rotary import rotary_launch
from astrai_kernels.errors import CudaUnavailableError


@pytest.fixture(autouse=True)
def no_backend_in_environment(monkeypatch):
    monkeypatch.delenv("ASTRAI_BACKEND", raising=False)


@pytest.mark.usefixtures("no_kernels")
def test_report_names_the_backend_and_the_reasons(capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("version    astrai-kernels 0.")
    assert lines[1:4] == [
        "device     cpu",
        "requested  auto",
        "backend    torch_native",
    ]
    assert [line.partition(":")[0] for line in lines[4:6]] == ["rejected   cuda", "rejected   cpu"]
    assert lines[6] == "cpu        no native kernels: no C++ compiler was found."
    assert {line[:11] for line in lines[7:]} == {"cuda       "}


def test_report_describes_the_native_kernels(kernels, capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "backend    cpu"
    name = kernels.instruction_set().decode()
    assert f"cpu        {name} kernels, 2 threads, {kernels.path}" in lines


@pytest.fixture
def cuda_machine(monkeypatch, tmp_path):
    """A machine with one GPU, seen without a driver."""
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path))
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpu)
    monkeypatch.setattr(doctor, "compiler_version", lambda: "13.2")
    monkeypatch.setattr(doctor, "known_archs", lambda: [75, 90, 121])
    monkeypatch.setattr(doctor, "target_for", Target)
    version = SimpleNamespace(cuDriverGetVersion=lambda: (0, 13020))
    monkeypatch.setattr(doctor, "driver", lambda: version)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "cuda-rotary-sm_90-0.cubin").write_bytes(b"")
    return tmp_path


def cuda_lines():
    report = doctor.report(torch.device("cpu")).splitlines()
    return [line.removeprefix("cuda").strip() for line in report if line.startswith("cuda")]


@pytest.mark.usefixtures("no_kernels")
def test_report_names_what_cuda_kernels_need(cuda_machine):
    assert cuda_lines() == [
        "NVRTC 13.2, for sm_75 to sm_121",
        "driver for CUDA 13.2",
        "GPU 0: NVIDIA H200, kernels compiled for sm_90",
        f"1 compiled kernels in {cuda_machine / 'kernels'}",
    ]


@pytest.mark.usefixtures("no_kernels")
def test_report_says_what_cuda_kernels_lack(cuda_machine, monkeypatch):
    def missing(*arguments):
        raise CudaUnavailableError("there is none; get one.")

    for name in ("compiler_version", "driver", "target_for"):
        monkeypatch.setattr(doctor, name, missing)
    assert cuda_lines()[:3] == ["there is none; get one."] * 3


def test_cuda_kernels_are_built_without_a_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path))
    try:
        compiler.compiler_version()
    except CudaUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("astrai_kernels.__main__.specializations", one_kernel)
    assert main(["build", "--arch", "sm_90", "--head-dim", "64", "--group", "3"]) == 0
    assert capsys.readouterr().out == "sm_90: 1 kernels\n"
    (entry,) = compiler.cached_kernels()
    assert entry.name.startswith("cuda-rotary_bf16_64-sm_90-")


def one_kernel(dtypes, head_dims, groups):
    return [rotary_launch(dtypes[0], head_dims[0]).kernel]


def test_cuda_kernels_of_usual_models_are_each_built_once():
    names = [kernel.name for kernel in specializations()]
    assert len(set(names)) == len(names)
    assert {"sample", "rotary_bf16_128", "decode_bf16_96_7", "prefill_bf16_64_1"} <= set(names)


@pytest.mark.parametrize(
    "arguments", [["--arch", "90"], ["--arch", "sm_70"], ["--arch", "sm_90", "--group", "x"]]
)
def test_a_wrong_choice_of_cuda_kernels_is_refused(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(["build", *arguments])


def test_build_prints_the_library(kernels, capsys):
    assert main(["build"]) == 0
    assert capsys.readouterr().out.endswith(".so\n")


def test_build_says_why_it_cannot(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["build"]) == 2
    assert "no C++ compiler was found; install one of g++" in capsys.readouterr().err


def test_report_says_when_the_choice_delegates(monkeypatch):
    monkeypatch.setenv("ASTRAI_BACKEND", "cuda")
    report = doctor.report(torch.device("cpu"))
    assert "requested  cuda\nbackend    cuda (delegating to torch)\nrejected   cuda: " in report


def test_a_wrong_setting_is_one_sentence_and_status_2(monkeypatch, capsys):
    monkeypatch.setenv("ASTRAI_BACKEND", "flash")
    assert main(["doctor"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("astrai-kernels: ASTRAI_BACKEND must be one of ")


@pytest.mark.parametrize(("has_gpu", "device"), [(False, "cpu"), (True, "cuda")])
def test_default_device_is_what_torch_finds(monkeypatch, has_gpu, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert doctor.default_device() == torch.device(device)


@pytest.mark.parametrize("arguments", [[], ["doctor", "--device", "toaster"]])
def test_a_wrong_command_line_is_refused(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["astrai-kernels", "doctor"])
    monkeypatch.setenv("ASTRAI_BACKEND", "torch_native")
    monkeypatch.delitem(sys.modules, "astrai_kernels.__main__")
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("astrai_kernels", run_name="__main__")
    assert "backend    torch_native" in capsys.readouterr().out
