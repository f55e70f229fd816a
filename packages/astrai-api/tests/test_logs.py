"""What a server's log shows, and what it leaves out."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest
from uvicorn.logging import DefaultFormatter

from astrai_api.application import default_app
from astrai_api.logs import JsonFormatter, configure_logging
from astrai_api.ready_message import ready_message, server_url
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Reply


@pytest.fixture
def access(monkeypatch):
    logger = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(logger, "filters", [])
    for name in (
        "astrai_api",
        "astrai_engine",
        "astrai_kernels",
        "astrai_kvcache",
        "opentelemetry",
    ):
        package = logging.getLogger(name)
        monkeypatch.setattr(package, "handlers", [])
        monkeypatch.setattr(package, "level", package.level)
        monkeypatch.setattr(package, "propagate", False)  # the root's handlers are pytest's
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


def json_line(name, message, *arguments, **extra):
    record = logging.getLogger(name).makeRecord(
        name, logging.INFO, "", 0, message, arguments, **{"exc_info": None, **extra}
    )
    return json.loads(JsonFormatter().format(record))


def test_a_message_as_json():
    line = json_line("astrai_api.x", "Hello, %s.\n", "you")
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "info", "logger": "astrai_api.x", "message": "Hello, you.\n"}


def test_an_access_line_as_json_has_no_query():
    line = json_line(
        "uvicorn.access", '%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/x?key=k", "1.1", 404
    )
    assert line["message"] == "GET /x 404"
    assert (line["client"], line["method"], line["path"], line["status"]) == (
        "1.2.3.4:5",
        "GET",
        "/x",
        404,
    )


def test_a_traceback_as_json():
    try:
        raise ValueError("wrong")
    except ValueError:
        line = json_line("astrai_api.x", "It failed.", exc_info=sys.exc_info())
    assert line["exception"].endswith("ValueError: wrong")


def formatters(name):
    return {type(handler.formatter) for handler in logging.getLogger(name).handlers}


@pytest.fixture
def console(monkeypatch):
    """A logger of uvicorn's with a handler, as its own configuration leaves it."""
    logger = logging.getLogger("uvicorn")
    handler = logging.StreamHandler()
    handler.setFormatter(DefaultFormatter())
    monkeypatch.setattr(logger, "handlers", [handler])
    return handler


def test_json_is_for_uvicorns_messages_too(access, console):
    configure_logging("json")
    assert isinstance(console.formatter, JsonFormatter)
    assert JsonFormatter in formatters("astrai_engine")


def test_handlers_that_others_set_up_keep_their_format(access, console):
    console.setFormatter(own := logging.Formatter("%(message)s"))
    configure_logging("json")
    assert console.formatter is own


async def test_lines_within_a_request_have_its_id(connect, caplog, monkeypatch):
    client = connect(FakeEngine.scripted(Reply(refuse=RuntimeError("a bug"))))
    lines = []
    formatter = JsonFormatter()
    monkeypatch.setattr(
        caplog.handler, "emit", lambda record: lines.append(formatter.format(record))
    )
    body = {"messages": [{"role": "user", "content": "a secret"}]}
    await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
    (line,) = lines
    assert json.loads(line)["request_id"] == "mine"
    assert "a secret" not in line


def test_an_app_of_the_process_logs_as_set(access, monkeypatch):
    monkeypatch.setenv("ASTRAI_LOG_FORMAT", "json")
    default_app()
    assert JsonFormatter in formatters("astrai_api")
