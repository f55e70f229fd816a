"""Log-probabilities of a chat choice on the wire."""

from collections.abc import Iterable
from typing import Any

from astrai_engine.events import TokenLogprob, TopLogprob

_VERY_UNLIKELY = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def chat_logprobs(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """The ``logprobs`` object of a choice or a chunk."""
    content = [{**_entry(e), "top_logprobs": [_entry(top) for top in e.top]} for e in entries]
    return {"content": content, "refusal": None}


def _entry(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": max(entry.logprob, _VERY_UNLIKELY),
        "bytes": list(entry.token_bytes),
    }
