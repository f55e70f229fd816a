"""The tokenizer a GGUF file's metadata describes, rebuilt as a ``tokenizers`` pipeline."""

import logging
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.byte_level import SPLITS, byte_level_pipeline, guess_split
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.sentencepiece import Kind, Pieces, sentencepiece_pipeline
from astrai_engine.loading.surroundings import surround
from astrai_engine.tokenizer import Tokenizer

_SUPPORTED = ("gpt2", "llama")
_KEEP_SPACES = ("<unk>", "<s>", "<|endoftext|>")
"""The control tokens of Phi-3 that do not swallow the spaces behind them."""

_logger = logging.getLogger(__name__)


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """Rebuild a file's tokenizer.

    Args:
        file: the open file.

    Raises:
        ModelLoadError: there is none, or it is of a kind that is not supported.
    """
    kind = file.get("tokenizer.ggml.model")
    if kind not in _SUPPORTED:
        raise ModelLoadError(
            f"{file.path} has a tokenizer of kind {kind!r}, which is not supported; "
            f"supported are {', '.join(_SUPPORTED)}."
        )
    tokens: list[str] = file.get("tokenizer.ggml.tokens", [])
    kinds: list[int] = file.get("tokenizer.ggml.token_type") or [Kind.NORMAL] * len(tokens)
    if kind == "llama":
        backend, adds_bos = _sentencepiece(file, tokens, kinds), True
    else:
        backend, adds_bos = _byte_level(file, tokens)
    _add_tokens(backend, tokens, kinds, strips=kind == "llama" and file.architecture == "phi3")
    bos, eos = (_named(file, tokens, f"{name}_token_id") for name in ("bos", "eos"))
    surround(
        backend,
        bos if file.get("tokenizer.ggml.add_bos_token", adds_bos) else None,
        eos if file.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    return Tokenizer(backend, bos_token=bos, eos_token=eos)


def _byte_level(file: GGUFFile, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    name = file.get("tokenizer.ggml.pre", "default")
    if name == "default":
        name = guess_split(file.architecture, tokens)
        _logger.warning("%s does not say how text is split; taken is %s.", file.path, name)
    if name not in SPLITS:
        raise ModelLoadError(
            f"{file.path} splits text as {name!r}, which is not supported; "
            f"supported are {', '.join(SPLITS)}."
        )
    merges = [_pair(merge) for merge in file.get("tokenizer.ggml.merges", [])]
    split = SPLITS[name]
    return byte_level_pipeline(tokens, merges, split), split.adds_bos


def _sentencepiece(file: GGUFFile, tokens: list[str], kinds: Sequence[int]) -> tokenizers.Tokenizer:
    return sentencepiece_pipeline(
        Pieces(
            tokens,
            kinds,
            file.get("tokenizer.ggml.scores", []),
            adds_space=file.get("tokenizer.ggml.add_space_prefix", True),
            charsmap=bytes(file.get("tokenizer.ggml.precompiled_charsmap", ())),
        )
    )


def _add_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], kinds: Sequence[int], *, strips: bool
) -> None:
    """Control and user-defined tokens are found in the text before it is split.

    The vocabulary of a SentencePiece model marks spaces, so it has no token of spaces: those are
    made by merging.
    """
    special, plain = [], []
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (Kind.CONTROL, Kind.UNKNOWN):
            rstrip = strips and token not in _KEEP_SPACES
            special.append(AddedToken(token, normalized=False, special=True, rstrip=rstrip))
        elif kind == Kind.USER_DEFINED and backend.token_to_id(token) is not None:
            plain.append(AddedToken(token, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _named(file: GGUFFile, tokens: list[str], key: str) -> str | None:
    token_id = file.get(f"tokenizer.ggml.{key}")
    return tokens[token_id] if token_id is not None and token_id < len(tokens) else None


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
