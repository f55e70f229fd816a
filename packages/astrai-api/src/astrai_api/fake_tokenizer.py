"""The vocabulary of the scripted engine: bytes, and words as they turn up."""

import re
import threading
from collections.abc import Iterable

_WORDS = re.compile(r"\s*\S+(?:\s+$)?")
_NUM_BYTES = 256


class FakeTokenizer:
    """Ids below 256 are bytes; every new word, with the space before it, gets the next id."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        """One id a word; there are no special tokens."""
        with self._lock:
            words = _WORDS.findall(text)
            return [self._ids.setdefault(word, _NUM_BYTES + len(self._ids)) for word in words]

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:  # noqa: ARG002
        """The words and bytes, joined."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """The word."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The word's bytes; none for ids that no word has yet."""
        if 0 <= token_id < _NUM_BYTES:
            return bytes([token_id])
        words = list(self._ids)
        number = token_id - _NUM_BYTES
        return words[number].encode() if 0 <= number < len(words) else b""
