"""What a command asks: a server, or an engine in this process behind the same protocol."""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import typer

from astrai_api.application import create_app
from astrai_api.cli.app_transport import AppTransport
from astrai_api.cli.console import Remarks
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_api.cli.http_errors import answered, unreachable
from astrai_api.lifecycle import load_engine
from astrai_api.served_models import DEFAULT_MODEL
from astrai_api.settings import load_settings, quiet_threads
from astrai_engine.loading.source import resolve_source

T = TypeVar("T")

_PANEL = "Whom to ask"
_LOCAL = "http://astrai"
_LOADING_SECONDS = 300.0

Url = Annotated[
    str | None,
    typer.Option(
        help="Ask a running server, such as http://localhost:8000. Without it, the model is "
        "loaded into this process.",
        rich_help_panel=_PANEL,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="With --url, a name that the server knows (default: its first). Without, what to "
        "load: a .gguf file, a folder or a hub id (default: the embedded model).",
        rich_help_panel=_PANEL,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="Key of the server, where it wants one.",
        envvar="ASTRAI_API_KEY",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class Target:
    """Something that answers requests.

    Attributes:
        client: sends requests, whose paths begin at the root.
        model: the name to ask for.
        place: where it is, for people: an address, or the name of the model in this process.
        title: what answers, for people.
    """

    client: httpx.AsyncClient
    model: str
    place: str
    title: str
    _runner: asyncio.Runner

    def request(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx.Request:
        """A POST of a JSON body, which asks for the target's model unless the body names one."""
        content = json.dumps({"model": self.model, **body})  # ASCII: any text can be sent
        headers = {"content-type": "application/json", **(headers or {})}
        return self.client.build_request("POST", path, content=content, headers=headers)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run some asynchronous work to its end; Ctrl-C cancels it and is raised."""
        return self._runner.run(work)


@contextmanager
def open_target(
    url: str | None, model: str | None, api_key: str | None, remarks: Remarks
) -> Iterator[Target]:
    """Reach the server, or load the model.

    Args:
        url: of a server; None runs an engine here.
        model: its name there, or what to load here.
        api_key: for the server; of several, separated by commas, the first.
        remarks: where to say what takes so long.

    Raises:
        CommandError: no server answers there, or it refuses the key.
        ConfigurationError: the model can't be loaded, or a setting is wrong.
    """
    if url is None:
        with _engine_here(model, remarks) as target:
            yield target
        return
    root = server_root(url)
    headers = {"authorization": f"Bearer {api_key.split(',')[0].strip()}"} if api_key else {}
    client = make_client(root, headers)
    with asyncio.Runner() as runner:
        try:
            with remarks.waiting(f"Waiting for {root}"):
                served = runner.run(_first_model(client, root))
            name = model or served
            yield Target(client, name, root, f"{name} at {root}", runner)
        finally:
            runner.run(client.aclose())


def server_root(url: str) -> str:
    """The root URL of a server, from what people write: without a scheme, or with ``/v1``."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parsed = urlsplit(whole)
        is_address = parsed.scheme in ("http", "https") and bool(parsed.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise CommandError(
            f"{url!r} is not the address of a server; give one like http://localhost:8000.",
            ExitCode.USAGE,
        )
    return whole.rstrip("/").removesuffix("/v1")


def make_client(root: str, headers: dict[str, str]) -> httpx.AsyncClient:
    """A client of a server; answers may take as long as they do."""
    host = httpx.URL(root).host
    return httpx.AsyncClient(
        base_url=root,
        headers=headers,
        timeout=httpx.Timeout(None, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=host not in ("localhost", "127.0.0.1", "::1"),  # a proxy has no way back here
    )


async def _first_model(client: httpx.AsyncClient, root: str) -> str:
    """The first name that a server lists; waits while it is still loading."""
    deadline = asyncio.get_running_loop().time() + _LOADING_SECONDS
    while True:
        with unreachable(root):
            response = await client.get("/v1/models")
        retry_after = response.headers.get("retry-after", "")
        loading = response.status_code == httpx.codes.SERVICE_UNAVAILABLE and retry_after.isdigit()
        if not loading or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(float(retry_after))
    names = answered(response, root).get("data") or [{}]
    return str(names[0].get("id", DEFAULT_MODEL))


@contextmanager
def _engine_here(model: str | None, remarks: Remarks) -> Iterator[Target]:
    settings = load_settings(options={"model": model} if model else {})
    resolve_source(
        settings.model, revision=settings.revision
    )  # a wrong name is told before torch is imported
    quiet_threads()
    with remarks.waiting("Loading the model"):
        engine = load_engine(settings)
    try:
        # Nobody but this process can ask, so nobody needs a key.
        app = create_app(engine=engine, settings=settings.model_copy(update={"api_key": ()}))
        client = httpx.AsyncClient(transport=AppTransport(app), base_url=_LOCAL, timeout=None)
        with asyncio.Runner() as runner:
            loaded = engine.info.model
            yield Target(client, DEFAULT_MODEL, loaded, loaded, runner)
    finally:
        engine.shutdown(0)
