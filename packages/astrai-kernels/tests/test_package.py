import re
import subprocess
import sys
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest

import astrai_kernels
from astrai_kernels import ops, select_backend, testing

PACKAGE = Path(__file__).parents[1]


def run_python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_torch_is_the_only_dependency():
    required = [line for line in requires("astrai-kernels") if "extra ==" not in line]
    assert [re.match(r"[\w-]+", line)[0] for line in required] == ["torch"]


def test_extras_bring_bindings_and_compiler_of_one_cuda_version():
    extras = [line for line in requires("astrai-kernels") if "extra ==" in line]
    for name in ("cu12", "cu13"):
        bindings, nvrtc = (line for line in extras if f"extra == '{name}'" in line)
        assert bindings.startswith("cuda-bindings")
        assert nvrtc.startswith("nvidia-cuda-nvrtc")


def test_importing_has_no_side_effects():
    code = """
import sys
import astrai_kernels, torch
siblings = [name for name in sys.modules if name.startswith("astrai_")]
assert {name.partition(".")[0] for name in siblings} == {"astrai_kernels"}, siblings
assert "pytest" not in sys.modules
assert astrai_kernels.cpu.library._loaded is None
assert not torch.cuda.is_initialized()
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_only_one_module_reads_the_environment():
    readers = [
        path.name
        for path in (PACKAGE / "src").rglob("*.py")
        if re.search(r"os\.environ|getenv", path.read_text(encoding="utf-8"))
    ]
    assert readers == ["_env.py"]


@pytest.mark.parametrize("module", [astrai_kernels, ops, testing])
def test_exported_names_are_sorted_and_exist(module):
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_console_script_is_installed():
    (script,) = entry_points(group="console_scripts", name="astrai-kernels")
    assert script.value == "astrai_kernels.__main__:main"


def test_readme_snippets_run():
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    attend, choose, quantised, contract = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    result = run_python(f"{attend}\n{choose}\nimport sys\nassert 'pytest' not in sys.modules")
    assert result.returncode == 0, result.stderr
    selection = select_backend("cpu")
    assert result.stdout.splitlines() == [
        f"{selection.name} (6, 9, 64)",
        *(f"not {rejection.name}: {rejection.reason}" for rejection in selection.rejected),
        "torch_native",
    ]
    result = run_python(quantised)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout in ("", "torch.Size([2, 96])\n")
    compile(contract, "README.md", "exec")
