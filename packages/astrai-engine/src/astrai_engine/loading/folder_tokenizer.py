"""The tokenizer of a checkpoint folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.sentencepiece import Kind, read_pieces, sentencepiece_pipeline
from astrai_engine.loading.surroundings import surround
from astrai_engine.tokenizer import Tokenizer

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an empty one when there is no such file.

    Raises:
        ModelLoadError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object; download it again.")
    return value


def read_tokenizer(folder: Path) -> Tokenizer:
    """A checkpoint's tokenizer.

    Args:
        folder: holds ``tokenizer.json`` or, as older checkpoints do, ``tokenizer.model``, and
            mostly ``tokenizer_config.json``.

    Raises:
        ModelLoadError: there is neither, or it can't be used.
    """
    config = read_tokenizer_config(folder)
    named = {key: _text(config.get(key)) for key in _SPECIAL_KEYS}
    if (folder / "tokenizer.json").is_file():
        backend = _from_json(folder / "tokenizer.json")
    elif (folder / "tokenizer.model").is_file():
        backend = _from_sentencepiece(folder / "tokenizer.model", config, named)
    else:
        raise ModelLoadError(
            f"{folder} has neither tokenizer.json nor tokenizer.model; make one with "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    _add_tokens(backend, config)
    known = [token for token in named.values() if token and backend.token_to_id(token) is not None]
    backend.add_special_tokens(known)
    return Tokenizer(backend, bos_token=named["bos_token"], eos_token=named["eos_token"])


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"{path} can't be read ({error}); download it again.") from error


def _from_sentencepiece(
    path: Path, config: Mapping[str, Any], named: Mapping[str, str | None]
) -> tokenizers.Tokenizer:
    pieces = read_pieces(path)
    backend = sentencepiece_pipeline(pieces, first_only=not config.get("legacy", True))
    control = (Kind.CONTROL, Kind.UNKNOWN)
    kinds = zip(pieces.tokens, pieces.kinds, strict=True)
    backend.add_special_tokens([token for token, kind in kinds if kind in control])
    added = read_json(path.parent / "added_tokens.json")
    by_id = sorted(added, key=lambda token: int(added[token]))
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in by_id])
    surround(
        backend,
        named["bos_token"] if config.get("add_bos_token", True) else None,
        named["eos_token"] if config.get("add_eos_token", False) else None,
    )
    return backend


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of its tokenizer: its own file, over that of older checkpoints.

    Raises:
        ModelLoadError: a file is not a JSON object.
    """
    tokens = read_json(folder / "special_tokens_map.json")
    return tokens | read_json(folder / "tokenizer_config.json")


def _add_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Older checkpoints list some added tokens outside ``tokenizer.json``."""
    listed = config.get("added_tokens_decoder") or {}
    for token_id in sorted(map(int, listed)):
        entry = listed[str(token_id)]
        if backend.token_to_id(entry["content"]) is None:
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            kept = {flag: bool(entry.get(flag)) for flag in flags}
            backend.add_tokens([tokenizers.AddedToken(entry["content"], **kept)])


def _text(token: Any) -> str | None:
    """A token's text; older files hold an object around it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
