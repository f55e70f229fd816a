"""The command in this process, on the scripted engine."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from astrai_api.cli.main import app
from astrai_api.testing import FakeEngine


@pytest.fixture
def astrai() -> Callable[..., Result]:
    """Run ``astrai`` with arguments."""

    def run(*arguments: object, stdin: str | None = None) -> Result:
        return CliRunner(env={"COLUMNS": "120"}).invoke(
            app, [str(each) for each in arguments], input=stdin
        )

    return run


@pytest.fixture
def local_engine(monkeypatch) -> Callable[[FakeEngine], list]:
    """Make commands load this engine; gives the settings they load it with."""

    def install(engine: FakeEngine) -> list:
        loaded = []

        def load(settings):
            loaded.append(settings)
            return engine

        monkeypatch.setattr("astrai_api.cli.target.load_engine", load)
        monkeypatch.setattr("astrai_api.cli.target.resolve_source", lambda *_, **__: None)
        return loaded

    return install


@pytest.fixture
def closed_port() -> str:
    """The URL of a port where nobody listens."""
    return "http://127.0.0.1:1"
