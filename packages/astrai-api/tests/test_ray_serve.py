"""Without its extra, the way to Ray says what to install; tests/scale has the rest."""

import subprocess
import sys


def test_importing_it_without_ray_names_the_extra():
    code = "import sys; sys.modules['ray'] = None; import astrai_api.ray_serve"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == ("ImportError: astrai_api.ray_serve needs Ray Serve: install astrai-api[ray].")
