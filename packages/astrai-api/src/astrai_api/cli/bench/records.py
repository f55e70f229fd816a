"""What a benchmark run leaves: a record for each request, and how it was made; a JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astrai_api.cli.exits import usage_error

FORMAT = "astrai-bench/1"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds; latencies count from ``due``, waiting for a place included.

    Attributes:
        due: when it was to be sent, from the start of the run.
        first: to the first text; None if none came.
        gaps: between pieces of text that followed one another.
        total: to the end.
        prompt_tokens: as the server counts them.
        cached_tokens: of the prompt, that the server had already.
        output_tokens: as the server counts them, or pieces of text where it does not.
        error: why it failed; None if it did not.
    """

    due: float
    first: float | None
    gaps: Sequence[float]
    total: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    error: str | None = None

    @property
    def per_token(self) -> float | None:
        """Mean seconds per token after the first; None where there are no two."""
        if self.first is None or self.output_tokens < 2:
            return None
        return (self.total - self.first) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is still good, in seconds; None is no limit.

    Attributes:
        first: to the first text.
        per_token: mean time per token after it.
        total: to the end.
    """

    first: float | None = None
    per_token: float | None = None
    total: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in asdict(self).values())

    def are_met_by(self, record: RequestRecord) -> bool:
        """Whether a request was good: it did not fail, and was in time."""
        pairs = (
            (record.first, self.first),
            (record.per_token, self.per_token),
            (record.total, self.total),
        )
        return record.error is None and all(
            limit is None or value is None or value <= limit for value, limit in pairs
        )


@dataclass(frozen=True)
class BenchRun:
    """A finished run.

    Attributes:
        name: for tables and reports.
        target: address and model.
        load: how requests were made, in words and numbers.
        limits: of what is good.
        seconds: from the first request to the last answer.
        requests: in the order in which they were due.
    """

    name: str
    target: dict[str, str]
    load: dict[str, Any]
    limits: Limits
    seconds: float
    requests: Sequence[RequestRecord]

    def save(self, path: Path, summary: dict[str, Any]) -> None:
        """Write everything into a JSON file, with a summary for other programs.

        Raises:
            CommandError: it can't be written.
        """
        content = {"format": FORMAT, "summary": summary, **asdict(self)}
        write_text(path, json.dumps(content) + "\n")

    @classmethod
    def load_file(cls, path: Path) -> "BenchRun":
        """Read what :meth:`save` wrote.

        Raises:
            CommandError: it is no such file.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError
            del content["summary"]
            content["limits"] = Limits(**content["limits"])
            content["requests"] = [RequestRecord(**each) for each in content["requests"]]
            return cls(**content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise usage_error(
                f"{path} is no result of a benchmark; name a file that 'astrai bench serve --json' "
                "wrote."
            ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        CommandError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise usage_error(f"{path} can't be written: {error.strerror}.") from error
