"""Times the parts of a step."""

from time import perf_counter


class Stopwatch:
    """Collects laps under their names; laps of one name add up.

    Attributes:
        started_at: when it was made, on the clock of ``time.perf_counter``.
        laps: seconds by name, in the order the names first came.
    """

    def __init__(self) -> None:
        self.started_at = perf_counter()
        self.laps: dict[str, float] = {}
        self._last = self.started_at

    def lap(self, name: str) -> None:
        """End a lap: the time since the last one goes to ``name``."""
        now = perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        """All laps together."""
        return self._last - self.started_at
