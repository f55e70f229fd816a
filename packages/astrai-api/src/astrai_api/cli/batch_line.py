"""Lines of a batch in OpenAI's format: requests in, results out."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATH = re.compile(r"/v1/[\w./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of a batch.

    Attributes:
        key: tells it apart from every other line, and from what stood there before an edit.
        custom_id: the user's name for it; None where the line has none.
        path: where it goes, such as ``/v1/chat/completions``.
        body: the request.
        problem: what is wrong with the line, in one sentence; None if it can be sent.
    """

    key: str
    custom_id: str | None
    path: str = ""
    body: Mapping[str, Any] | None = None
    problem: str | None = None

    def answered(self, status: int, request_id: str | None, body: Any) -> dict[str, Any]:
        """The result of a request that a server answered, well or not."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        return self._result(response=response, error=None)

    def refused(self) -> dict[str, Any]:
        """The result of a line that can't be sent."""
        error = {"code": "invalid_line", "message": self.problem}
        return self._result(response=None, error=error)

    def _result(self, **outcome: Any) -> dict[str, Any]:
        return {"id": f"batch_req_{self.key}", "custom_id": self.custom_id, **outcome}


def has_failed(result: Mapping[str, Any]) -> bool:
    """Whether a result is anything but a good answer."""
    response = result["response"]
    return response is None or not 200 <= response["status_code"] < 300


def is_final(result: Mapping[str, Any]) -> bool:
    """Whether trying again can change nothing: an answer, or a refusal of what was asked."""
    response = result["response"]
    return response is None or response["status_code"] < 500


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The requests of a file, in order; empty lines are left out.

    Args:
        path: of JSON lines with ``custom_id``, ``method``, ``url`` and ``body``.
    """
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            key = hashlib.sha256(b"%d\n%b" % (number, raw.strip())).hexdigest()[:24]
            line = _parse(key, raw)
            if line.custom_id is not None and line.custom_id in seen:
                problem = f"custom_id {line.custom_id!r} is used by an earlier line"
                line = BatchLine(key, line.custom_id, problem=problem)
            if line.custom_id is not None:
                seen.add(line.custom_id)
            if line.problem is not None:
                message = f"Line {number}: {line.problem}."
                line = BatchLine(key, line.custom_id, problem=message)
            yield line


def _parse(key: str, raw: bytes) -> BatchLine:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return BatchLine(key, None, problem=f"not JSON ({error})")
    if not isinstance(fields, dict):
        return BatchLine(key, None, problem="not a JSON object")
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str):
        return BatchLine(key, None, problem="custom_id is missing or no text")
    path, body = fields.get("url"), fields.get("body")
    problem = None
    if fields.get("method", "POST") != "POST":
        problem = "method has to be POST"
    elif not isinstance(path, str) or not _PATH.fullmatch(path):
        problem = "url has to be a path such as /v1/chat/completions"
    elif not isinstance(body, dict):
        problem = "body is missing or no JSON object"
    elif body.get("stream"):
        problem = "a batch has no streams; leave stream out of the body"
    if problem is not None:
        return BatchLine(key, custom_id, problem=problem)
    return BatchLine(key, custom_id, str(path), body)
