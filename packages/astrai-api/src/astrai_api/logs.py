"""Logging of a server started from the command line; embedding programs set up their own.

No message has text of a prompt or an answer.
"""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from uvicorn.logging import ColourizedFormatter, DefaultFormatter

from astrai_api.request_id import current_request_id

LogFormat = Literal["text", "json"]

if TYPE_CHECKING:
    _StderrHandler = logging.StreamHandler[TextIO]
else:
    _StderrHandler = logging.StreamHandler

_QUIET_PATHS = ("/health", "/ready", "/metrics")
_PACKAGES = ("astrai_api", "astrai_engine", "astrai_kernels", "astrai_kvcache", "opentelemetry")
_SERVER = ("uvicorn", "uvicorn.access")


class _SkipProbes(logging.Filter):
    """Drops the access lines of probes, which would drown the rest."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        if not isinstance(args, tuple) or len(args) != 5:
            return True
        path, status = str(args[2]).partition("?")[0], args[4]
        return not (path in _QUIET_PATHS and status in (200, 503))


class _Console(_StderrHandler):
    """Shows the messages of one of our packages on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, and what else is known.

    That is ``request_id`` within a request, ``trace_id`` and ``span_id`` within a trace,
    ``exception`` with its traceback, and ``client``, ``method``, ``path`` and ``status`` of an
    access line, whose query string is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        access = record.args if record.name == "uvicorn.access" else None
        if isinstance(access, tuple) and len(access) == 5:
            client, method, path, _, status = access
            path = str(path).partition("?")[0]
            line |= {"message": f"{method} {path} {status}", "client": client}
            line |= {"method": method, "path": path, "status": status}
        else:
            line["message"] = record.getMessage()
        line |= dict(_context())
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _context() -> Iterator[tuple[str, str]]:
    request_id = current_request_id()
    if request_id is not None:
        yield "request_id", request_id
    trace = sys.modules.get("opentelemetry.trace")  # only where traces are on
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            yield "trace_id", f"{span.trace_id:032x}"
            yield "span_id", f"{span.span_id:016x}"


def configure_logging(log_format: LogFormat = "text", *, level: str = "info") -> None:
    """Show the project's messages on stderr, unless set up already.

    Handlers with formatters of an embedding program's own are left as they are.

    Args:
        log_format: text in the look of uvicorn's, or JSON, which uvicorn's own messages get, too.
        level: the least important that are shown.
    """
    access = logging.getLogger("uvicorn.access")
    if not any(isinstance(known, _SkipProbes) for known in access.filters):
        access.addFilter(_SkipProbes())
    for name in _PACKAGES:
        package = logging.getLogger(name)
        if not package.hasHandlers():
            package.addHandler(_Console())
            package.setLevel(level.upper())
    if log_format == "json":
        for name in (*_PACKAGES, *_SERVER):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler.formatter, ColourizedFormatter):
                    handler.setFormatter(JsonFormatter())
