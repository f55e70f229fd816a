"""What a batch has done so far, in a file beside its output: how it survives being killed."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from astrai_api.cli.batch_line import is_final
from astrai_api.cli.exits import usage_error


class BatchJournal:
    """Results in the order in which they came, each written at once.

    The first line says what answers; a line that a crash cut short is dropped.

    Args:
        path: of the file; results in it already are kept, if the same target gave them.
        target: what answers this batch.

    Raises:
        CommandError: the journal was begun with another target, is something else, or can't be
            written.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise usage_error(f"{path} can't be written: {error.strerror}.") from error
        try:
            if self._read(target) is None:
                self._write({"target": target})
        except (ValueError, KeyError, TypeError) as error:
            self._file.close()
            raise usage_error(
                f"{path} holds something else than the results of a batch; move it away."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def append(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a result."""
        self._places[key] = self._write({"key": key, "result": result})

    def result(self, key: str) -> dict[str, Any]:
        """A result that was kept."""
        place, length = self._places[key]
        self._file.seek(place)
        kept: dict[str, Any] = json.loads(self._file.read(length))["result"]
        return kept

    def finish(self, keys: Iterable[str], output: Path) -> None:
        """Write the results of these keys, in their order, and remove the journal.

        Args:
            keys: all of them are kept.
            output: replaced in one step.
        """
        unfinished = output.with_name(f"{output.name}.tmp")
        with unfinished.open("w", encoding="ascii") as file:
            for key in keys:
                file.write(json.dumps(self.result(key)) + "\n")
        os.replace(unfinished, output)
        self._path.unlink()

    def _read(self, target: str) -> str | None:
        """Learn what is there; gives its target, or None if there is nothing."""
        self._file.seek(0)
        found: str | None = None
        place = 0
        for raw in self._file:
            if not raw.endswith(b"\n"):
                self._file.truncate(place)
                break
            line = json.loads(raw)
            if found is None:
                found = line["target"]
            elif is_final(line["result"]):
                self._places[line["key"]] = (place, len(raw))
            place += len(raw)
        if found not in (None, target):
            self._file.close()
            raise usage_error(
                f"{self._path} was begun with {found}, not {target}; go on with that, or start "
                "again with --overwrite."
            )
        return found

    def _write(self, line: Mapping[str, Any]) -> tuple[int, int]:
        raw = json.dumps(line).encode() + b"\n"
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(raw)
        self._file.flush()
        return place, len(raw)
