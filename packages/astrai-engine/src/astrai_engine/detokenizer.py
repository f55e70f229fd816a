"""From token ids to text as they come, without ever splitting a character."""

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token's text; none for control tokens."""


class Detokenizer:
    """Turns tokens into text, piece by piece; the pieces make the text of all bytes at once.

    A character whose bytes come in several tokens appears with the last of them. Bytes that can
    no longer become a character appear at once as U+FFFD.

    Args:
        tokenizer: gives the bytes of each token.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add a token; gives the text that became final."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The end of the tokens: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
