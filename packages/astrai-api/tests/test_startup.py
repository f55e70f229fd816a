"""What the server is told when the lifespan of an app fails."""

import asyncio

import pytest

from astrai_api.application import default_app
from astrai_api.startup import LifespanErrors, RefuseToStart
from astrai_engine.errors import ConfigurationError

SCOPE = {"type": "lifespan"}


def failing_app(error, stage="startup"):
    """Behaves as Starlette does: tells the server a traceback, then raises."""

    async def app(scope, receive, send):
        await receive()
        await send({"type": f"lifespan.{stage}.failed", "message": "Traceback ..."})
        raise error

    return app


async def lifespan(app):
    sent = []

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message)

    try:
        await app(SCOPE, receive, send)
    except BaseException as error:
        return sent, error
    return sent, None


async def test_wrong_setting_is_a_sentence():
    error = ConfigurationError("No such model.")
    sent, raised = await lifespan(LifespanErrors(failing_app(error)))
    assert sent == [{"type": "lifespan.startup.failed", "message": "No such model."}]
    assert raised is error


async def test_anything_else_keeps_its_traceback():
    sent, raised = await lifespan(LifespanErrors(failing_app(ZeroDivisionError())))
    assert sent == [{"type": "lifespan.startup.failed", "message": "Traceback ..."}]
    assert isinstance(raised, ZeroDivisionError)


async def test_cancelled_shutdown_says_nothing():
    app = failing_app(asyncio.CancelledError(), "shutdown")
    sent, raised = await lifespan(LifespanErrors(app))
    assert sent == [{"type": "lifespan.shutdown.failed", "message": ""}]
    assert isinstance(raised, asyncio.CancelledError)


async def test_failure_without_a_report_is_only_raised():
    async def app(*_):
        raise ZeroDivisionError

    sent, raised = await lifespan(LifespanErrors(app))
    assert (sent, type(raised)) == ([], ZeroDivisionError)


async def test_refusing_to_start():
    sent, raised = await lifespan(RefuseToStart(ConfigurationError("Wrong.")))
    assert sent == [{"type": "lifespan.startup.failed", "message": "Wrong."}]
    assert raised is None


@pytest.mark.parametrize("variable", ["ASTRAI_MAX_QUEUE", "ASTRAI_DEVICE"])
async def test_default_app_with_a_wrong_setting_refuses(monkeypatch, variable):
    monkeypatch.setattr("astrai_api.application.configure_logging", lambda: None)
    monkeypatch.setenv(variable, "nonsense")
    sent, _ = await lifespan(default_app())
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert variable in sent[0]["message"]
