import sys
from pathlib import Path

import pytest

from astrai_kernels import EnvironmentValueError, _env


@pytest.mark.parametrize(("value", "expected"), [("", None), ("auto", None), (" 4 ", 4)])
def test_number_of_threads(monkeypatch, value, expected):
    monkeypatch.setenv("ASTRAI_NUM_THREADS", value)
    assert _env.num_threads() == expected


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "²"])
def test_a_bad_number_of_threads_is_named(monkeypatch, value):
    monkeypatch.setenv("ASTRAI_NUM_THREADS", value)
    with pytest.raises(EnvironmentValueError, match="ASTRAI_NUM_THREADS must be a number"):
        _env.num_threads()


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("ASTRAI_CACHE_DIR", "/somewhere")
    assert _env.cache_dir() == Path("/somewhere")
    monkeypatch.delenv("ASTRAI_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert _env.cache_dir() == Path("/cache/astrai")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _env.cache_dir() == Path.home() / ".cache" / "astrai"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _env.cache_dir() == Path.home() / "Library" / "Caches" / "astrai"
