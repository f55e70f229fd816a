"""``astrai serve``: the HTTP server."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
import uvicorn

from astrai_api.application import create_app
from astrai_api.cli.exits import CommandError, ExitCode, usage_error
from astrai_api.cli.setting_options import EPILOG, GivenSettings, takes_settings
from astrai_api.logs import configure_logging
from astrai_engine.loading.source import resolve_source

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_PANEL = "Server"


@app.command(epilog=EPILOG)
@takes_settings
def serve(
    given: GivenSettings,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. 127.0.0.1 is this machine only; 0.0.0.0 is everybody who "
            "can reach it, so give an --api-key too.",
            rich_help_panel=_PANEL,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=_PANEL),
    ] = 8000,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="How much the log tells.", rich_help_panel=_PANEL),
    ] = "info",
    access_log: Annotated[
        bool, typer.Option(help="A line in the log for every request.", rich_help_panel=_PANEL)
    ] = True,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(
            help="Certificate, to serve https.", rich_help_panel=_PANEL, exists=True, dir_okay=False
        ),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(
            help="Key of that certificate.", rich_help_panel=_PANEL, exists=True, dir_okay=False
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP, for OpenAI and Anthropic clients.

    The port is open at once; when the model has loaded, the log says where to point a client. Stop
    it with Ctrl-C or SIGTERM: running answers are finished first, and the exit status is 0.
    """
    if (ssl_certfile is None) != (ssl_keyfile is None):
        raise usage_error("Give --ssl-certfile and --ssl-keyfile together.")
    resolve_source(given.settings.model, revision=given.settings.revision)
    config = uvicorn.Config(
        create_app(settings=given.settings),
        host=host,
        port=port,
        log_level=log_level,
        access_log=access_log,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=None if ssl_keyfile is None else str(ssl_keyfile),
    )
    configure_logging(given.settings.log_format, level=log_level)  # uvicorn's messages, too
    run_server(config)


def run_server(config: uvicorn.Config) -> None:
    """Serve until a signal, and return once running requests have been answered.

    Raises:
        CommandError: the server did not start; its log says why.
    """
    server = uvicorn.Server(config)
    # uvicorn gives the signal back when it has stopped, which would end us by it: not status 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    server.run()
    if not server.started:
        raise CommandError("The server did not start; see above.", ExitCode.FAILED)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(ExitCode.OK)
