"""What the log says once the engine is ready: where to point a client, and what runs."""

from typing import Any

from astrai_api.client import EngineClient
from astrai_api.served_models import ServedModels
from astrai_api.settings import Settings

_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}


def ready_message(engine: EngineClient, settings: Settings, server: Any) -> str:
    """One block of text.

    Args:
        engine: loaded.
        settings: of the app.
        server: the uvicorn server, where it is one, for its address.
    """
    info = engine.info
    root = server_url(server)
    names = ", ".join(ServedModels(settings.served_model_name).names(engine))
    lines = [
        "AstrAI is ready.",
        f"  OpenAI clients     base_url={root}/v1",
        f"  Anthropic clients  base_url={root}",
        f"  model              {info.model}, served as {names}",
        f"  device             {info.device}, {info.dtype}",
        f"  backend            {info.backend}",
        f"  pool               {info.n_tokens:,} token slots in pages of {info.page_size}",
        f"  context            {info.max_seq_len:,} tokens",
    ]
    return "\n".join(lines)


def server_url(server: Any) -> str:
    """The root URL of a uvicorn server, or a stand-in where it cannot be told."""
    try:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if server.config.is_ssl else "http"
    except (AttributeError, IndexError, ValueError):
        return "http://HOST:PORT"
    host = _EVERY_INTERFACE.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
