"""Logging of a server started from the command line; embedding programs set up their own."""

import logging

from uvicorn.logging import DefaultFormatter

_QUIET_PATHS = ("/health", "/ready", "/metrics")


class _SkipProbes(logging.Filter):
    """Drops the access lines of probes, which would drown the rest."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        if not isinstance(args, tuple) or len(args) != 5:
            return True
        path, status = str(args[2]).partition("?")[0], args[4]
        return not (path in _QUIET_PATHS and status in (200, 503))


def configure_logging(level: str = "info") -> None:
    """Show the project's messages on stderr, in the look of uvicorn's, unless set up already.

    Args:
        level: the least important that are shown.
    """
    access = logging.getLogger("uvicorn.access")
    if not any(isinstance(known, _SkipProbes) for known in access.filters):
        access.addFilter(_SkipProbes())
    for name in ("astrai_api", "astrai_engine", "astrai_kernels"):
        package = logging.getLogger(name)
        if not package.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))
            package.addHandler(handler)
            package.setLevel(level.upper())
