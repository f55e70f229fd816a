"""Start-up failures as one sentence: what is wrong with the settings, without a traceback."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_engine.errors import ConfigurationError


class LifespanErrors:
    """ASGI middleware that says what a server's log shows when the lifespan fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; report a wrong setting as a sentence, anything else as it comes."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        failure: Message | None = None

        async def hold_back_failure(message: Message) -> None:
            nonlocal failure
            if message["type"].endswith(".failed"):
                failure = message
            else:
                await send(message)

        try:
            await self._app(scope, receive, hold_back_failure)
        except BaseException as error:
            if failure is not None:
                await send({**failure, "message": _explanation(error, failure)})
            raise


def _explanation(error: BaseException, failure: Message) -> str:
    match error:
        case ConfigurationError():
            return str(error)
        case asyncio.CancelledError():
            return ""  # the process ends for a reason it has logged already
        case _:
            traceback: str = failure["message"]
            return traceback


class RefuseToStart:
    """An ASGI app that fails its start-up with a sentence: stands in where no app can be built."""

    def __init__(self, error: ConfigurationError) -> None:
        self._message = str(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Fail the start-up."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": self._message})
