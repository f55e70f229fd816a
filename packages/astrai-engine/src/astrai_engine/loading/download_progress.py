"""How far a download is, told to a caller instead of drawn on a terminal."""

import threading
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

OnProgress = Callable[[int, int], None]
"""Gets the bytes fetched so far and the bytes to fetch in all; called from several threads, one
call at a time, and once at the start and at the end."""


def silent_bar(on_progress: OnProgress, total: int) -> type[Any]:
    """A class for the hub's ``tqdm_class``: its bars draw nothing and report bytes.

    The hub counts the same bytes in several bars, as they arrive and as they are written; the
    furthest of them is reported.

    Args:
        on_progress: gets the reports.
        total: bytes to fetch.
    """
    lock = threading.Lock()
    furthest = 0
    on_progress(0, total)

    class SilentBar(tqdm):  # type: ignore[misc]
        def display(self, *args: Any, **options: Any) -> None:
            """Draw nothing."""

        def update(self, n: float | None = 1) -> bool | None:
            moved: bool | None = super().update(n)
            if self.unit == "B":
                self._report()
            return moved

        def _report(self) -> None:
            nonlocal furthest
            with lock:
                if self.n > furthest:
                    furthest = min(int(self.n), total)
                    on_progress(furthest, total)

    return SilentBar
