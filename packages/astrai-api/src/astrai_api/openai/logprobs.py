"""Log-probabilities on the wire: those of chats, and the older form of completions."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from astrai_engine.events import TokenLogprob, TopLogprob

_VERY_UNLIKELY = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def chat_logprobs(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """The ``logprobs`` object of a choice or a chunk."""
    return {"content": logprob_entries(entries), "refusal": None}


def logprob_entries(entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """One object for each token that has text, with its alternatives."""
    return [
        {**_entry(e), "top_logprobs": [_entry(top) for top in e.top]}
        for e in entries
        if e.token_bytes
    ]


def _entry(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": max(entry.logprob, _VERY_UNLIKELY),
        "bytes": list(entry.token_bytes),
    }


class CompletionLogprobs:
    r"""The ``logprobs`` object of a text completion, token by token.

    It has every token, also those without text: evaluation harnesses count entries.

    A token that is no whole character is spelled ``bytes:\xe4``, so that alternatives keep
    different names.

    Args:
        surplus: characters that the first tokens decode to and the text does not begin with, as
            some vocabularies put a space in front.
    """

    def __init__(self, surplus: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = -surplus
        self._tokens: list[str] = []
        self._values: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        """Append tokens with their probabilities."""
        for entry in entries:
            self._append(_name(entry), entry.token_bytes)
            self._values.append(max(entry.logprob, _VERY_UNLIKELY))
            self._tops.append(_named_values([*entry.top, entry]))

    def add_unscored(self, token: str, token_bytes: bytes) -> None:
        """Append a token that has no probability."""
        self._append(token, token_bytes)
        self._values.append(None)
        self._tops.append(None)

    def take(self) -> dict[str, Any]:
        """The object for all tokens since the last call."""
        taken = {
            "tokens": self._tokens,
            "token_logprobs": self._values,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._tokens, self._values, self._tops, self._offsets = [], [], [], []
        return taken

    def _append(self, token: str, token_bytes: bytes) -> None:
        self._tokens.append(token)
        self._offsets.append(max(0, self._offset))
        self._offset += len(self._decoder.decode(token_bytes))


def _named_values(entries: Sequence[TokenLogprob | TopLogprob]) -> dict[str, float]:
    """Names to values, likeliest first, which is the one kept should two have the same name."""
    values: dict[str, float] = {}
    for entry in entries:
        values.setdefault(_name(entry), max(entry.logprob, _VERY_UNLIKELY))
    return values


def _name(entry: TokenLogprob | TopLogprob) -> str:
    try:
        entry.token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return entry.token
