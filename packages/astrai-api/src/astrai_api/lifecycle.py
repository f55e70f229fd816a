"""The engine's life inside a server: loading, ready, draining, gone.

The port is bound while the model loads in a thread. SIGTERM and SIGINT start a drain at once,
before the server's own handler runs: ASGI shutdown comes only after the last stream has ended.
"""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from types import FrameType
from typing import Any

from astrai_api.client import EngineClient
from astrai_api.errors import ApiError
from astrai_api.ready_message import ready_message
from astrai_api.settings import Settings
from astrai_engine.errors import ConfigurationError
from astrai_engine.loading.source import resolve_source

logger = logging.getLogger(__name__)

EngineLoader = Callable[[Settings], EngineClient]

_BIND_SECONDS = 0.2
"""The head start the server gets to bind its port: if that fails, nothing is loaded."""

_LOOK_SECONDS = 0.005
"""How often a server that says when it has started is looked at meanwhile."""


class HostState(Enum):
    """Where the engine stands."""

    LOADING = "loading"
    READY = "ok"
    LOST = "lost"
    DRAINING = "draining"


class EngineHost:
    """Holds the one engine of an app.

    Args:
        settings: of the app.
        engine: a loaded engine. The app owns it from here on and shuts it down when it stops.
        load: makes the engine when none is given; runs in a thread of its own.
    """

    def __init__(
        self, settings: Settings, *, engine: EngineClient | None, load: EngineLoader
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._load = load
        self._draining = False
        self._stopping = threading.Event()
        self._server: Any = None

    @property
    def state(self) -> HostState:
        """Where the engine stands now."""
        if self._draining:
            return HostState.DRAINING
        if self._engine is None:
            return HostState.LOADING
        return HostState.READY if self._engine.is_healthy else HostState.LOST

    @property
    def loaded_engine(self) -> EngineClient | None:
        """The engine whatever state it is in; None while it loads."""
        return self._engine

    def engine(self) -> EngineClient:
        """The engine, if it can take a request.

        Raises:
            ApiError: 503, with what is in the way.
        """
        match self.state:
            case HostState.LOADING:
                raise _unavailable("Engine not initialized", "engine_not_initialized")
            case HostState.DRAINING:
                raise _unavailable("The server is shutting down.", "shutting_down")
            case HostState.LOST:
                raise _unavailable("The engine has stopped; restart the server.", "engine_lost")
        assert self._engine is not None
        return self._engine

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Load the engine, and stop it in the end.

        Raises:
            ConfigurationError: there is no such model.
        """
        loop = asyncio.get_running_loop()
        if self._engine is None:
            resolve_source(self._settings.model, revision=self._settings.revision)
            threading.Thread(target=self._load_in_thread, args=(loop,), daemon=True).start()
        try:
            with self._drain_on_signals(loop):
                yield
        except asyncio.CancelledError:
            self._stop_at_once()
            raise
        self._draining = True
        self._stopping.set()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown, self._settings.shutdown_timeout)

    def _stop_at_once(self) -> None:
        """End the engine's thread before the interpreter goes, which it could not survive."""
        self._draining = True
        self._stopping.set()
        if self._engine is not None:
            self._engine.shutdown(0)

    def _load_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._stops_before_binding():
            return
        try:
            engine = self._load(self._settings)
        except ConfigurationError as error:
            logger.error("%s", error)
            _call(loop, _exit)
        except BaseException:
            logger.exception("The engine could not be loaded.")
            _call(loop, _exit)
        else:
            if self._stopping.is_set() or not _call(loop, self._adopt, engine):
                engine.shutdown(0)

    def _stops_before_binding(self) -> bool:
        for _ in range(round(_BIND_SECONDS / _LOOK_SECONDS)):
            if self._stopping.wait(_LOOK_SECONDS) or getattr(self._server, "started", False):
                break
        return self._stopping.is_set()

    def _adopt(self, engine: EngineClient) -> None:
        self._engine = engine
        if self._draining:
            engine.begin_drain()
        else:
            logger.info("%s", ready_message(engine, self._settings, self._server))

    @contextmanager
    def _drain_on_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Chain onto the server's handlers, where there are any and signals can be handled."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        chained: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)
            if callable(previous):
                chained[number] = previous
                signal.signal(number, self._handler(loop, previous))
                self._server = getattr(previous, "__self__", None)
        try:
            yield
        finally:
            for chained_number, previous in chained.items():
                signal.signal(chained_number, previous)

    def _handler(
        self, loop: asyncio.AbstractEventLoop, previous: Callable[[int, FrameType | None], Any]
    ) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            _call(loop, self.drain)
            previous(number, frame)

        return handle

    def drain(self) -> None:
        """Refuse new requests; stop those still running after the shutdown timeout.

        Called on the event loop.
        """
        if self._draining:
            return
        self._draining = True
        if self._engine is not None:
            self._engine.begin_drain()
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._settings.shutdown_timeout,
                lambda: loop.run_in_executor(None, self._stop_at_once),
            )


def load_engine(settings: Settings) -> EngineClient:
    """The real engine, ready to serve. Imports torch, and keeps it out of the collector's sight.

    Next to nothing of it is garbage. Walking it for that again and again takes a sixth of the
    time until the server is ready; later on, a full collection would stop every stream meanwhile.
    """
    gc.disable()
    try:
        from astrai_engine import InferenceEngine  # noqa: PLC0415  (torch comes with it)

        return InferenceEngine(config=settings.engine_config())
    finally:
        gc.freeze()
        gc.enable()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> bool:
    """Call on the loop from elsewhere; False when it has closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


def _exit() -> None:
    raise SystemExit(1)


def _unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, retry_after=1)
