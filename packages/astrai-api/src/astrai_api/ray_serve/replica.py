"""One replica: an engine, and the application that serves it, in a process of Ray's."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import Message

from astrai_api.application import create_app
from astrai_api.lifecycle import load_engine
from astrai_api.logs import configure_logging
from astrai_api.replicas.autoscaling import load_of
from astrai_api.replicas.forwarded import ForwardedRequest, app_answer
from astrai_api.replicas.front import REPLICA_HEADER, ReplicaLostError
from astrai_api.settings import load_settings, quiet_threads


class EngineReplica:
    """Takes requests once its engine has loaded.

    Args:
        options: settings, by name.
        num_threads: for the CPU kernels where the settings do not say.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, options: Mapping[str, Any], num_threads: int
    ) -> None:
        settings = load_settings(options=options)
        configure_logging(settings.log_format)
        os.environ.setdefault("ASTRAI_NUM_THREADS", str(num_threads))
        quiet_threads()
        self._name: str = serve.get_replica_context().replica_tag
        self._engine = await asyncio.to_thread(load_engine, settings)
        self._app = create_app(self._engine, settings)
        self._life = AsyncExitStack()
        await self._life.enter_async_context(self._app.router.lifespan_context(self._app))

    async def __del__(self) -> None:
        """Stop the engine; Serve awaits this when no request is left."""
        if hasattr(self, "_life"):
            await self._life.aclose()

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """What the application sends, with the name of this replica in its headers.

        Raises:
            ReplicaLostError: the request is another replica's, which is gone.
        """
        if request.replica not in (None, self._name):
            raise ReplicaLostError(request.replica)
        async with aclosing(app_answer(self._app, request)) as answer:
            async for messages in answer:
                if messages[0]["type"] == "http.response.start":
                    MutableHeaders(scope=messages[0])[REPLICA_HEADER] = self._name
                yield messages

    def check_health(self) -> None:
        """Serve replaces the replica when this raises.

        Raises:
            RuntimeError: the engine is lost.
        """
        if not self._engine.is_healthy:
            raise RuntimeError("The engine has stopped.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve tells the autoscaling policy."""
        return load_of(self._engine.get_stats())
