import pytest

from astrai_kernels.backends import fallback


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch):
    """Fallbacks are reported once per process; each test starts as a new one."""
    monkeypatch.setattr(fallback, "_reported", set())
