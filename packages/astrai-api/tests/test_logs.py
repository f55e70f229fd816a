"""What a server's log shows, and what it leaves out."""

import logging
from types import SimpleNamespace

import pytest

from astrai_api.logs import configure_logging
from astrai_api.ready_message import ready_message, server_url
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine


@pytest.fixture
def access(monkeypatch):
    logger = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(logger, "filters", [])
    for name in ("astrai_api", "astrai_engine", "astrai_kernels"):
        package = logging.getLogger(name)
        monkeypatch.setattr(package, "handlers", [])
        monkeypatch.setattr(package, "level", package.level)
    configure_logging()
    configure_logging()
    return logger


def shown(logger, path, status):
    arguments = ("127.0.0.1:1", "GET", path, "1.1", status)
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, "%s %s %s %s %d", arguments, None)
    return bool(logger.filter(record))


def test_probes_are_not_logged(access):
    """B212."""
    assert not shown(access, "/health", 200)
    assert not shown(access, "/ready?x=1", 503)
    assert shown(access, "/v1/models", 200)
    assert shown(access, "/health", 500)
    assert len(access.filters) == 1


def _server(*address, ssl=False):
    listener = SimpleNamespace(getsockname=lambda: address)
    return SimpleNamespace(
        servers=[SimpleNamespace(sockets=[listener])], config=SimpleNamespace(is_ssl=ssl)
    )


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (_server("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        (_server("0.0.0.0", 80, ssl=True), "https://127.0.0.1:80"),
        (_server("::1", 8000, 0, 0), "http://[::1]:8000"),
        (SimpleNamespace(servers=[]), "http://HOST:PORT"),
        (None, "http://HOST:PORT"),
    ],
)
def test_url_of_the_server(server, url):
    assert server_url(server) == url


def test_ready_message_names_everything_served():
    settings = Settings(served_model_name=("mine", "*"))
    text = ready_message(FakeEngine(), settings, _server("127.0.0.1", 8000))
    assert "base_url=http://127.0.0.1:8000/v1" in text
    assert "fake-model, served as mine, astrai" in text
    assert "backend            fake" in text
