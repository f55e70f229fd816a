"""The lines of a stream of completion chunks."""

from collections.abc import Callable, Mapping
from typing import Any

from astrai_api.sse import HOLE, EventTemplate, encode_event

_Fields = Mapping[str, Any]


class ChunkFormat:
    """Chunks of one stream: the same head in each, and one choice.

    Args:
        head: what every chunk begins with: id, object, created, model.
        text_fields: gives the fields of a choice that hold a text.
        empty_fields: the fields of a choice without text.
        include_usage: the client asked for the counts, in a chunk without choices.
    """

    def __init__(
        self,
        head: _Fields,
        *,
        text_fields: Callable[[str], _Fields],
        empty_fields: _Fields,
        include_usage: bool,
    ) -> None:
        self._head = head
        self._text_fields = text_fields
        self._empty_fields = empty_fields
        self._include_usage = include_usage
        self._templates: dict[int, EventTemplate] = {}

    def text(self, index: int, text: str, logprobs: _Fields | None = None) -> bytes:
        """New text of a choice."""
        if logprobs is not None:
            return encode_event(self._chunk(index, self._text_fields(text), logprobs=logprobs))
        template = self._templates.get(index)
        if template is None:
            chunk = self._chunk(index, self._text_fields(HOLE))
            template = self._templates[index] = EventTemplate(chunk)
        return template.fill(text)

    def fields(self, index: int, fields: _Fields, logprobs: _Fields | None = None) -> bytes:
        """Anything else of a choice."""
        return encode_event(self._chunk(index, fields, logprobs=logprobs))

    def finish(self, index: int, reason: str, logprobs: _Fields | None = None) -> bytes:
        """The end of a choice."""
        chunk = self._chunk(index, self._empty_fields, logprobs=logprobs, finish_reason=reason)
        return encode_event(chunk)

    def usage_line(self, counts: _Fields) -> bytes:
        """One object for both readers: those of the counts at the top, and those of a chunk.

        Clients that did not ask for usage index ``choices[0]`` of every chunk; those that asked
        expect no choice in this one.

        Args:
            counts: the ``usage`` object.
        """
        line = {
            **self._chunk(0, self._empty_fields),
            "usage": counts,
            "prompt_tokens": counts["prompt_tokens"],
            "completion_tokens": counts["completion_tokens"],
            "total_tokens": counts["total_tokens"],
        }
        if self._include_usage:
            line["choices"] = []
        return encode_event(line)

    def _chunk(
        self,
        index: int,
        fields: _Fields,
        *,
        logprobs: _Fields | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, **fields, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk
