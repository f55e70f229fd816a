"""Loading, ready, draining, gone."""

import asyncio
import logging
import signal
import threading

import pytest

from astrai_api.application import create_app
from astrai_api.lifecycle import EngineHost, HostState
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.errors import ModelNotFoundError

BODY = {"messages": [{"role": "user", "content": "Hello"}]}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")


class Loader:
    """Loads when told to."""

    def __init__(self):
        self.engine = FakeEngine()
        self.proceed = threading.Event()
        self.started = Gate()
        self.thread = None

    def __call__(self, settings):
        self.thread = threading.current_thread()
        self.started.open()
        assert self.proceed.wait(10)
        return self.engine


@pytest.fixture
def model(tmp_path):
    """The path of something that looks like a model."""
    path = tmp_path / "model.gguf"
    path.touch()
    return str(path)


@pytest.fixture
def loader():
    loader = Loader()
    yield loader
    loader.proceed.set()
    if loader.thread is not None:
        loader.thread.join(10)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_requests_are_refused_until_the_model_is_loaded(connect, loader, model, caplog):
    app = create_app(settings=Settings(model=model), load=loader)
    client = connect(app=app)
    caplog.set_level(logging.INFO)
    async with app.router.lifespan_context(app):
        response = await client.get("/health")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json() == {
            "error": {
                "message": "Engine not initialized",
                "type": "service_unavailable_error",
                "param": None,
                "code": "engine_not_initialized",
            },
            "detail": "Engine not initialized",
            "status": "loading",
            "model_loaded": False,
        }
        for path in PATHS:
            response = await client.post(path, json=BODY)
            assert response.status_code == 503
            assert response.json()["detail"] == "Engine not initialized"
            assert response.headers["retry-after"] == "1"
        for path in ("/v1/models", "/stats", "/ready"):
            assert (await client.get(path)).status_code == 503
        loader.proceed.set()
        await until(lambda: app.state.serving.host.state is HostState.READY)
        assert (await client.get("/health")).json() == {"status": "ok", "model_loaded": True}
        assert (await client.post(PATHS[0], json=BODY)).status_code == 200
    assert loader.engine.stopped.is_open
    for words in ("/v1\n", "fake-model", "cpu, float32", "8,192 token slots in pages of 16"):
        assert words in caplog.text


async def test_wrong_model_ends_start_up(loader):
    app = create_app(settings=Settings(model="/nowhere/model.gguf"), load=loader)
    with pytest.raises(ModelNotFoundError, match="/nowhere/model"):
        async with app.router.lifespan_context(app):
            pass
    assert not loader.started.is_open


async def test_nothing_is_loaded_when_the_server_stops_at_once(loader, model):
    app = create_app(settings=Settings(model=model), load=loader)
    async with app.router.lifespan_context(app):
        pass
    for thread in threading.enumerate():
        if thread.daemon:
            await asyncio.to_thread(thread.join, 10)
    assert not loader.started.is_open


async def test_engine_loaded_after_the_end_is_shut_down(loader, model):
    app = create_app(settings=Settings(model=model), load=loader)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(loader.started.wait(), 10)
    loader.proceed.set()
    await asyncio.wait_for(loader.engine.stopped.wait(), 10)


async def test_draining_refuses_new_requests_and_finishes_old_ones(connect):
    gate = Gate()
    engine = FakeEngine.scripted(Reply("a", gate, " b"))
    app = create_app(engine=engine, settings=Settings())
    client = connect(app=app)
    async with app.router.lifespan_context(app):
        running = asyncio.ensure_future(client.post(PATHS[0], json=BODY))
        await until(lambda: engine.handles)
        app.state.serving.host.drain()
        assert engine.draining
        for path in PATHS:
            response = await client.post(path, json=BODY)
            assert response.status_code == 503
            assert "retry-after" in response.headers
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "draining"
        gate.open()
        assert (await running).json()["choices"][0]["message"]["content"] == "a b"
        assert not engine.stopped.is_open
    assert engine.stopped.is_open


async def test_what_still_runs_after_the_timeout_is_stopped(connect):
    engine = FakeEngine.scripted(Reply("a", Gate()))
    app = create_app(engine=engine, settings=Settings(shutdown_timeout=0.01))
    client = connect(app=app)
    async with app.router.lifespan_context(app):
        running = asyncio.ensure_future(client.post(PATHS[0], json={**BODY, "stream": True}))
        await until(lambda: engine.handles)
        app.state.serving.host.drain()
        assert '"error"' in (await asyncio.wait_for(running, 10)).text


async def test_second_interrupt_stops_the_engine_at_once():
    """B202: a server that is forced to quit cancels the lifespan."""
    engine = FakeEngine()
    host = EngineHost(Settings(), engine=engine, load=Loader())

    async def lifespan():
        async with host.lifespan(None):
            await Gate().wait()

    task = asyncio.ensure_future(lifespan())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.stopped.is_open


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_start_a_drain_and_reach_the_server(number):
    received = []
    previous = signal.signal(number, lambda *args: received.append(args[0]))
    try:
        chained = signal.getsignal(number)
        host = EngineHost(Settings(), engine=FakeEngine(), load=Loader())
        async with host.lifespan(None):
            signal.raise_signal(number)
            await until(lambda: host.state is HostState.DRAINING)
            assert received == [number]
        assert signal.getsignal(number) is chained
    finally:
        signal.signal(number, previous)


async def test_draining_while_loading(loader, model):
    app = create_app(settings=Settings(model=model), load=loader)
    host = app.state.serving.host
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(loader.started.wait(), 10)
        host.drain()
        loader.proceed.set()
        await until(lambda: loader.engine.draining)
        assert host.state is HostState.DRAINING
