"""Saying everything that is wrong with a checkpoint's tensors in one sentence."""

from collections.abc import Sequence
from pathlib import Path

from astrai_engine.errors import ModelLoadError

_MOST_NAMED = 16


def check_complete(path: Path, problems: Sequence[str]) -> None:
    """Refuse a checkpoint that has problems.

    Args:
        path: the file or folder.
        problems: what is wrong, one tensor each; the first of very many are named.

    Raises:
        ModelLoadError: there are any.
    """
    if not problems:
        return
    named = "; ".join(problems[:_MOST_NAMED])
    more = len(problems) - _MOST_NAMED
    rest = f"; and {more} more" if more > 0 else ""
    raise ModelLoadError(f"{path} cannot be loaded: {named}{rest}.")
