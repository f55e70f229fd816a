"""SentencePiece vocabularies of the BPE kind, from GGUF files and ``tokenizer.model`` files."""

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from astrai_engine.errors import ModelLoadError
from astrai_engine.token_spelling import SPACE_MARK

_BPE = 2
_Field = tuple[int, int | bytes]


class Kind(IntEnum):
    """What a piece is, by SentencePiece's own numbers, which GGUF files use as well."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_MERGEABLE = frozenset((Kind.NORMAL, Kind.USER_DEFINED))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary.

    Attributes:
        tokens: the pieces, in order.
        kinds: of each.
        scores: of each; the neighbours whose union scores best are joined first.
        adds_space: a text gets a space in front.
        charsmap: SentencePiece's compiled table of characters to replace; mostly empty.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    adds_space: bool
    charsmap: bytes = b""


def sentencepiece_pipeline(pieces: Pieces, *, first_only: bool = False) -> tokenizers.Tokenizer:
    """A ``tokenizers`` pipeline with a vocabulary's own ids; control tokens are not in it yet.

    Args:
        pieces: the vocabulary.
        first_only: the space in front is for the whole text; otherwise what follows a control
            token gets one too, as all older checkpoints have it.
    """
    tokens = _marked(pieces)
    unknown = next(
        (t for t, kind in zip(tokens, pieces.kinds, strict=True) if kind == Kind.UNKNOWN), None
    )
    backend = tokenizers.Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            _merges(tokens, pieces),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=Kind.BYTE in pieces.kinds,
        )
    )
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.adds_space and first_only:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif pieces.adds_space:
        steps.append(normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_MARK)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _marked(pieces: Pieces) -> list[str]:
    """GGUF files write user-defined runs of spaces as spaces; the vocabulary marks them."""
    return [
        token.replace(" ", SPACE_MARK) if kind == Kind.USER_DEFINED else token
        for token, kind in zip(pieces.tokens, pieces.kinds, strict=True)
    ]


def _merges(tokens: Sequence[str], pieces: Pieces) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third: unions of the best score first.

    User-defined pieces score 0, the best there is, whatever a GGUF file says of them. Of equal
    scores, those with the longest left and then the longest right part come first.
    """
    kinds, scores = pieces.kinds, pieces.scores
    known = {t for t, kind in zip(tokens, kinds, strict=True) if kind in _MERGEABLE}
    ranks = [
        0.0 if kind == Kind.USER_DEFINED else -score
        for kind, score in zip(kinds, scores, strict=True)
    ]
    merges: list[tuple[str, str]] = []
    for _, equal in itertools.groupby(
        sorted(range(len(ranks)), key=ranks.__getitem__), ranks.__getitem__
    ):
        ways = [
            (left, right)
            for token in (tokens[i] for i in equal)
            if token in known
            for cut in range(len(token) - 1, 0, -1)
            if (left := token[:cut]) in known and (right := token[cut:]) in known
        ]
        merges += sorted(ways, key=lambda pair: (-len(pair[0]), -len(pair[1])))
    return merges


def read_pieces(path: Path) -> Pieces:
    """The vocabulary in a ``tokenizer.model`` file.

    The file is a protocol buffer, ``ModelProto`` in SentencePiece's ``sentencepiece_model.proto``;
    the field numbers here are that file's.

    Raises:
        ModelLoadError: it can't be read, or is of another kind than BPE.
    """
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [dict(_fields(_bytes(value))) for number, value in fields if number == 1]
        trainer = _message(fields, 2)
        normalizer = _message(fields, 3)
        tokens = [_bytes(piece[1]).decode() for piece in pieces]
        scores = [
            struct.unpack("<f", _bytes(piece[2]))[0] if 2 in piece else 0.0 for piece in pieces
        ]
        kinds = [int(piece.get(3, Kind.NORMAL)) for piece in pieces]
    except (OSError, ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise ModelLoadError(
            f"{path} is not a SentencePiece model ({error}); download it again."
        ) from error
    if trainer.get(3, 1) != _BPE:
        raise ModelLoadError(
            f"{path} is a SentencePiece model of another kind than BPE; make a tokenizer.json with "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    return Pieces(
        tokens,
        kinds,
        scores,
        adds_space=bool(normalizer.get(3, True)),
        charsmap=_bytes(normalizer.get(2, b"")),
    )


def _message(fields: list[_Field], wanted: int) -> dict[int, int | bytes]:
    return dict(_fields(_bytes(next((v for number, v in fields if number == wanted), b""))))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TypeError("a number where bytes are expected")


def _fields(data: bytes) -> Iterator[_Field]:
    """The fields of a protocol buffer: number and value, fixed-width values as their bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}[wire_type]
        if at + size > len(data):
            raise ValueError("it ends in the middle of a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
