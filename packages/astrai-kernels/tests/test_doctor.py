import runpy
import sys

import pytest
import torch

from astrai_kernels import doctor
from astrai_kernels.__main__ import main


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
    assert lines[6:] == ["cpu        no native kernels: no C++ compiler was found."]


def test_report_describes_the_native_kernels(kernels, capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "backend    cpu"
    name = kernels.instruction_set().decode()
    assert lines[-1] == f"cpu        {name} kernels, 2 threads, {kernels.path}"


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
