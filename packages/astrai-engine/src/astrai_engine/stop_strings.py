"""Stop strings in streamed text: nothing that may still become part of one is let out."""

from collections.abc import Sequence


class StopStrings:
    """Finds the leftmost stop string, however the text is cut into pieces.

    Of two that begin at the same place the shorter wins: it is complete first. The result is
    that of searching the whole text at once.

    Args:
        stops: strings that end the text and are not part of it; empty ones are dropped.

    Attributes:
        matched: the stop string that ended the text, or None. ``finish`` can set it too, when
            one is complete and the end shows that no other begins before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text.

        Args:
            text: the next piece.

        Returns:
            The text that became final; once a stop matches, the text before it. Text after a
            match is dropped.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        return self._release(self._first_open())

    def finish(self) -> str:
        """The end of the text: gives what was held back, up to a stop string if one is in it."""
        if self.matched is not None:
            return ""
        return self._release(len(self._held))

    def _release(self, first_open: int) -> str:
        """Let out what comes before the first place where a stop string may yet grow."""
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        at, stop = min(found, key=lambda match: match[0], default=(first_open, None))
        if at > first_open:
            at, stop = first_open, None
        text, self._held = self._held[:at], self._held[at:]
        self.matched = stop
        return text

    def _first_open(self) -> int:
        """Where the longest tail begins that a stop string starts with."""
        earliest = max(0, len(self._held) - len(self._stops[-1]) + 1)
        for at in range(earliest, len(self._held)):
            tail = self._held[at:]
            if any(stop.startswith(tail) for stop in self._stops):
                return at
        return len(self._held)
