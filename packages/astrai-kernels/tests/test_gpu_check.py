"""The script that checks kernels on a GPU, on machines without one."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "gpu_times", raising=False)
    spec = importlib.util.spec_from_file_location("gpu_check", BENCHMARKS / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    return module


def test_without_a_gpu_it_says_so(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    assert capsys.readouterr().out == ("There is nothing to check: torch finds no NVIDIA GPU.\n")


@pytest.mark.parametrize(("checks", "status"), [([], 0), ([AssertionError("wrong")], 1)])
def test_the_status_says_whether_all_checks_pass(gpu_check, monkeypatch, capsys, checks, status):
    def failing(error):
        raise error

    def attention_checks():
        return [("broken", lambda error=error: failing(error)) for error in checks]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(gpu_check, "attention_checks", attention_checks)
    for name in ("views", "offsets_beyond_32_bits", "no_synchronisation", "graph", "sampling"):
        monkeypatch.setattr(gpu_check, f"check_{name}", lambda: None)
    monkeypatch.setattr(gpu_check, "print_times", lambda: sys.stdout.write("times\n"))
    assert gpu_check.main() == status
    out = capsys.readouterr().out
    assert "times\n" in out
    assert f"5 of {5 + len(checks)} checks pass" in out
    assert ("FAILED  broken" in out) == bool(checks)
