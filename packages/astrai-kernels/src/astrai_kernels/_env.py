"""The only reader of the environment in this package."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astrai_kernels.errors import EnvironmentValueError

BACKEND_VARIABLE = "ASTRAI_BACKEND"
CACHE_DIR_VARIABLE = "ASTRAI_CACHE_DIR"
NUM_THREADS_VARIABLE = "ASTRAI_NUM_THREADS"


def backend_name(accepted: Sequence[str]) -> str | None:
    """Read ``ASTRAI_BACKEND``.

    Args:
        accepted: the names of the backends.

    Returns:
        One of ``accepted``, or None when the variable is unset, empty or ``auto``.

    Raises:
        EnvironmentValueError: the variable holds something else.
    """
    value = os.environ.get(BACKEND_VARIABLE, "").strip().lower()
    if value in ("", "auto"):
        return None
    if value not in accepted:
        choices = ", ".join(["auto", *accepted])
        raise EnvironmentValueError(f"{BACKEND_VARIABLE} must be one of {choices}, not {value!r}.")
    return value


def cache_dir() -> Path:
    """Where compiled kernels and the like are kept.

    ``ASTRAI_CACHE_DIR``, else the folder that the system has for caches of the user.
    """
    chosen = os.environ.get(CACHE_DIR_VARIABLE, "").strip()
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "astrai"
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache") / "astrai"


def num_threads() -> int | None:
    """Read ``ASTRAI_NUM_THREADS``; None when it is unset, empty or ``auto``.

    Raises:
        EnvironmentValueError: the variable holds something else than a number of at least 1.
    """
    value = os.environ.get(NUM_THREADS_VARIABLE, "").strip().lower()
    if value in ("", "auto"):
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise EnvironmentValueError(
            f"{NUM_THREADS_VARIABLE} must be a number of at least 1, or auto, not {value!r}."
        )
    return int(value)
