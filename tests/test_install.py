"""The two lower packages install alone: torch comes along, no other AstrAI package does."""

import json
import shutil
import subprocess

import pytest

INVENTORY = """
import importlib.metadata, json, {module}
names = sorted(d.metadata["Name"] for d in importlib.metadata.distributions())
print(json.dumps([names, {module}.__file__]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["astrai-kvcache", "astrai-kernels"])
def test_a_package_installs_alone(name, root, tmp_path):
    uv = shutil.which("uv")
    assert uv, "uv is not on PATH; `pip install uv` puts it there."
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    run([uv, "venv", "--quiet", environment], cwd=root)
    run([uv, "pip", "install", "--quiet", "--python", python, f"./packages/{name}"], cwd=root)

    module = name.replace("-", "_")
    inventory = run([python, "-I", "-c", INVENTORY.format(module=module)], cwd=tmp_path)
    installed, location = json.loads(inventory)

    assert "torch" in installed
    assert [each for each in installed if each.startswith("astrai")] == [name]
    assert location.startswith(str(environment))


def run(command, cwd):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
