"""The dependency rule, by its contracts and by what an import really brings.

That kvcache and kernels need nobody is proved in ``test_install.py``, where each is alone.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

NOT_BROUGHT = {
    "astrai_engine": ("torch", "astrai_kvcache", "astrai_kernels", "astrai_api"),
    "astrai_engine.scheduler": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_engine.request": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_engine.events": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_engine.config": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_api": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_api.application": ("torch", "astrai_kvcache", "astrai_kernels"),
    "astrai_api.testing": ("torch", "astrai_kvcache", "astrai_kernels"),
}


def run_python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("module", NOT_BROUGHT)
def test_importing_a_module_brings_only_what_the_rule_allows(module):
    code = f"import sys, {module}; print(*(m for m in {NOT_BROUGHT[module]} if m in sys.modules))"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_contracts_hold(root):
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_a_forbidden_import_breaks_a_contract(root, tmp_path):
    """The contracts see a violation: the same configuration, on packages that break the rule."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c for c in settings["contracts"] if c["type"] == "layers")
    for name in settings["root_packages"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "astrai_kvcache" / "__init__.py").write_text("import astrai_kernels\n")
    lines = [
        "[importlinter]",
        "root_packages =",
        *(f"    {name}" for name in settings["root_packages"]),
        "[importlinter:contract:1]",
        f"name = {layers['name']}",
        "type = layers",
        "layers =",
        *(f"    {layer}" for layer in layers["layers"]),
    ]
    (tmp_path / ".importlinter").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "astrai_kvcache is not allowed to import astrai_kernels" in done.stdout
