import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from astrai_api.cli.console import Remarks
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_api.cli.target import open_target, server_root
from astrai_api.testing import FakeEngine


def connect(url, api_key=None):
    with open_target(url, None, api_key, Remarks()):
        pass


@pytest.mark.parametrize(
    ("written", "root"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/v1/", "https://h"),
        ("http://h/proxy/v1", "http://h/proxy"),
    ],
)
def test_what_people_write_is_understood(written, root):
    assert server_root(written) == root


@pytest.mark.parametrize("written", ["", "nonsense://x", "http://", "http://[", "ftp://h"])
def test_what_is_no_address_is_refused(written):
    with pytest.raises(CommandError, match="is not the address of a server") as caught:
        server_root(written)
    assert caught.value.code is ExitCode.USAGE


def test_a_server_is_asked_for_its_first_model(serve):
    url = serve(FakeEngine(), served_model_name=("first", "second"))
    with open_target(url, None, None, Remarks()) as target:
        assert (target.model, target.place) == ("first", url)
        assert target.title == f"first at {url}"
    with open_target(url, "second", None, Remarks()) as target:
        assert target.model == "second"


def test_keys_are_sent(serve):
    url = serve(FakeEngine(), api_key=("secret",))
    with open_target(url, None, "secret, other", Remarks()) as target:
        assert target.run(target.client.get("/stats")).status_code == 200
    with pytest.raises(CommandError, match="wants a key") as caught:
        connect(url, "wrong")
    assert caught.value.code is ExitCode.FAILED


def test_nobody_there(closed_port):
    with pytest.raises(CommandError, match="No server answers at") as caught:
        connect(closed_port)
    assert caught.value.code is ExitCode.UNREACHABLE


def test_an_engine_here_needs_no_key(local_engine, monkeypatch):
    monkeypatch.setenv("ASTRAI_API_KEY", "secret")
    engine = FakeEngine()
    loaded = local_engine(engine)
    with open_target(None, "some/model", None, Remarks()) as target:
        assert target.run(target.client.get("/v1/models")).status_code == 200
        assert target.place == target.title == "fake-model"
    assert loaded[0].model == "some/model"
    assert engine.draining


def answering(*responses):
    """An application that gives one response after the other, then the last for good."""
    left = list(responses)

    async def app(scope, receive, send):
        if scope["type"] != "lifespan":
            response = left.pop(0) if len(left) > 1 else left[0]
            await response(scope, receive, send)

    return app


def test_a_server_that_still_loads_is_waited_for(serve_app):
    loading = JSONResponse({"detail": "Engine not initialized"}, 503, {"retry-after": "0"})
    url = serve_app(answering(loading, loading, JSONResponse({"data": [{"id": "late"}]})))
    with open_target(url, None, None, Remarks()) as target:
        assert target.model == "late"


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (PlainTextResponse("<html>"), "is no OpenAI-compatible server"),
        (JSONResponse([1]), "is no OpenAI-compatible server"),
        (PlainTextResponse("broken", 502), "answered with status 502"),
        (JSONResponse({"error": {"message": "Lost."}}, 503), "Lost."),
    ],
)
def test_something_else_there(serve_app, response, told):
    url = serve_app(answering(response))
    with pytest.raises(CommandError, match=told) as caught:
        connect(url)
    assert caught.value.code is ExitCode.UNREACHABLE
