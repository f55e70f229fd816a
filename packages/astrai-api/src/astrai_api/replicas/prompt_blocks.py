"""The beginning of a request's prompt, as digests that are equal where prompts begin alike.

A prompt is cut into blocks of text, and the digest of a block covers everything before it too: two
prompts with the same third digest have the same first three blocks. No tokenizer is needed, and
what the digests cannot tell (where the chat template puts the tools, say) only costs a guess.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

BLOCK_BYTES = 128
"""Of text in a block: about two pages of tokens. A shorter rest at the end has no digest."""

MAX_BLOCKS = 512
"""How much of a long prompt is looked at: 64 KiB, some 16,000 tokens."""

GENERATION_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
)
"""Paths whose requests have a prompt to compute."""

_FIELDS = ("tools", "system", "instructions", "messages", "input", "prompt")
"""What prompts are made of in all protocols, in the order in which templates write it."""


def prompt_blocks(path: str, body: bytes, *, tenant: str = "") -> tuple[bytes, ...]:
    """Digests of the beginning of a request's prompt, 8 bytes each.

    Args:
        path: of the request.
        body: of the request, as it came.
        tenant: whose cached prefixes the request may use, where that makes a difference.

    Returns:
        One digest a block; none for a request without a prompt, or whose body is not understood:
        saying what is wrong with it is up to the replica.
    """
    if path not in GENERATION_PATHS:
        return ()
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(fields, dict):
        return ()
    digest = hashlib.blake2b(f"{tenant}\0{fields.get('cache_salt')}".encode(errors="replace"))
    text = _beginning(fields)
    digests = []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest.update(text[start : start + BLOCK_BYTES])
        digests.append(digest.copy().digest()[:8])
    return tuple(digests)


def _beginning(fields: Mapping[str, Any]) -> bytes:
    """As much of the prompt as is looked at."""
    pieces = bytearray()
    for piece in _pieces(fields):
        pieces += piece.encode(errors="replace")
        if len(pieces) >= MAX_BLOCKS * BLOCK_BYTES:
            break
    return bytes(pieces[: MAX_BLOCKS * BLOCK_BYTES])


def _pieces(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in _FIELDS:
        value = fields.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from map(_written, value)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
