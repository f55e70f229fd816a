"""Importing the package does nothing, and ``astrai_api:app`` is the application."""

import subprocess
import sys

import pytest

import astrai_api


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_brings_neither_torch_nor_anything_of_the_package():
    run(
        "import astrai_api, sys\n"
        "assert [name for name in sys.modules if name.startswith('astrai_api')] == ['astrai_api']\n"
        "assert 'torch' not in sys.modules and 'fastapi' not in sys.modules"
    )


def test_factory_brings_no_torch_and_keeps_idle_threads_quiet():
    run(
        """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
import astrai_api
assert "OMP_WAIT_POLICY" not in os.environ
astrai_api.create_app(settings=astrai_api.Settings())
assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
assert "torch" not in sys.modules
"""
    )


def test_app_is_the_application_in_every_import_order():
    run(
        """
import sys
from fastapi import FastAPI
from uvicorn.importer import import_from_string

FIRST = [
    "",
    "import astrai_api.application",
    "from astrai_api import create_app",
    "from astrai_api import app",
    "import astrai_api; astrai_api.app",
]
for first in FIRST:
    for name in [name for name in sys.modules if name.startswith("astrai_api")]:
        del sys.modules[name]
    exec(first)
    app = import_from_string("astrai_api:app")
    assert isinstance(app, FastAPI), (first, app)
    import astrai_api, astrai_api.application
    from astrai_api import app as again
    assert again is app is astrai_api.app, first
"""
    )


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing"):
        _ = astrai_api.nothing
