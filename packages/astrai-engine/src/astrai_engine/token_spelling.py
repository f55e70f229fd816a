"""How vocabularies spell bytes: each token's text as the exact bytes it stands for."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from astrai_engine.errors import ModelLoadError

Spelling = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


@cache
def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    Bytes that print stand for themselves; the others take the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; one with foreign characters is plain text."""
    alphabet = byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()


def sentencepiece(token: str) -> bytes:
    """Bytes of a SentencePiece token: ``<0x0A>`` is a byte, U+2581 a space."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes((int(byte[1], 16),))
    return token.replace(SPACE_MARK, " ").encode()


def added_spelling(spelling: Spelling) -> Spelling:
    """How a vocabulary spells its added tokens: as they are, but for SentencePiece's spaces."""
    return sentencepiece if spelling is sentencepiece else str.encode


def spelling_of(decoder: Any) -> Spelling:
    """The spelling a ``tokenizers`` decoder undoes.

    Args:
        decoder: the decoder of a pipeline, or None.

    Raises:
        ModelLoadError: a decoder of another kind.
    """
    kinds = [] if decoder is None else list(_kinds(json.loads(decoder.__getstate__())))
    if "ByteLevel" in kinds:
        return byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return sentencepiece
    raise ModelLoadError(
        f"The tokenizer's decoder ({', '.join(kinds) or 'none'}) is not supported; "
        "supported are byte-level and SentencePiece vocabularies."
    )


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)
