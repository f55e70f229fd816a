"""The tokenizer a GGUF file's metadata describes, rebuilt as a ``tokenizers`` pipeline.

A file names how text is split before merging but not the steps themselves. The steps here are
those of the models' own ``tokenizer.json``.
"""

from collections.abc import Callable, Sequence

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.token_spelling import SPACE_MARK
from astrai_engine.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """Rebuild a file's tokenizer.

    Args:
        file: the open file.

    Raises:
        ModelLoadError: there is none, or it is of a kind that is not supported.
    """
    kind = file.get("tokenizer.ggml.model")
    if kind not in _VOCABULARIES:
        raise ModelLoadError(
            f"{file.path} has a tokenizer of kind {kind!r}, which is not supported; "
            f"supported are {', '.join(_VOCABULARIES)}."
        )
    tokens: list[str] = file.get("tokenizer.ggml.tokens", [])
    backend = _VOCABULARIES[kind](file, tokens)
    _add_tokens(backend, tokens, _types(file, tokens))
    bos = _named(file, tokens, "bos_token_id")
    if bos is not None and file.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=None, special_tokens=[(bos, tokens.index(bos))]
        )
    return Tokenizer(backend, bos_token=bos, eos_token=_named(file, tokens, "eos_token_id"))


def _byte_level(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    split = file.get("tokenizer.ggml.pre", "default")
    if split not in _SPLITS:
        raise ModelLoadError(
            f"{file.path} splits text as {split!r}, which is not supported; "
            f"supported are {', '.join(_SPLITS)}."
        )
    merges = [_pair(merge) for merge in file.get("tokenizer.ggml.merges", [])]
    model = models.BPE(_ids(tokens), merges, ignore_merges=split == "llama-bpe")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _SPLITS[split]()
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


_SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits_apart,
    "llama-bpe": lambda: _by_pattern(_LLAMA3_SPLIT),
    "qwen2": lambda: _by_pattern(_QWEN2_SPLIT),
}


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    types = _types(file, tokens)
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = _merges_by_score(tokens, types, file.get("tokenizer.ggml.scores", []))
    backend = tokenizers.Tokenizer(
        models.BPE(
            _ids(tokens), merges, unk_token=unknown, fuse_unk=True, byte_fallback=_BYTE in types
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if file.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _merges_by_score(
    tokens: list[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best: as merges, best first."""
    known = {t for t, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    best_first = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)
    return [
        (tokens[i][:cut], tokens[i][cut:])
        for i in best_first
        if tokens[i] in known
        for cut in range(1, len(tokens[i]))
        if tokens[i][:cut] in known and tokens[i][cut:] in known
    ]


_VOCABULARIES: dict[str, Callable[[GGUFFile, list[str]], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    """Control and user-defined tokens are found in the text before it is split."""
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])


def _types(file: GGUFFile, tokens: list[str]) -> list[int]:
    types: list[int] = file.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    return types


def _named(file: GGUFFile, tokens: list[str], key: str) -> str | None:
    token_id = file.get(f"tokenizer.ggml.{key}")
    return tokens[token_id] if token_id is not None and token_id < len(tokens) else None


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
