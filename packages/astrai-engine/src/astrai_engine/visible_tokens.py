"""Special tokens that a request wants to read in its text."""

from collections.abc import Mapping
from typing import Protocol

from astrai_engine.detokenizer import TokenBytes


class TokenTexts(TokenBytes, Protocol):
    """What a generation needs of a tokenizer."""

    def token_text(self, token_id: int) -> str:
        """A token's text, for people to read."""
        ...


class VisibleTokens:
    """A vocabulary in which some special tokens have a text.

    Args:
        vocabulary: the model's own, in which none has.
        visible: ids of those that are to have one, by that text.
    """

    def __init__(self, vocabulary: TokenTexts, visible: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._bytes = {token_id: text.encode() for text, token_id in visible.items()}

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token's text."""
        visible = self._bytes.get(token_id)
        return self._vocabulary.token_bytes(token_id) if visible is None else visible

    def token_text(self, token_id: int) -> str:
        """A token's text, for people to read."""
        return self._vocabulary.token_text(token_id)
