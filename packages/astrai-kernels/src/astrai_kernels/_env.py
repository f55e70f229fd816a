"""The only reader of the environment in this package."""

import os
from collections.abc import Sequence

from astrai_kernels.errors import EnvironmentValueError

BACKEND_VARIABLE = "ASTRAI_BACKEND"


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
