"""Byte-level vocabularies: how the models of each kind split text before merging.

GGUF files name the way but do not hold it. The names are llama.cpp's; the steps are those of the
models' own ``tokenizer.json``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(contractions: str, digits: str) -> str:
    """Words split where lower case turns upper, as in the vocabularies of GPT-4o and Tekken."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{_UPPER}*{_LOWER}+{contractions}|{before}{_UPPER}+{_LOWER}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
    )


_GPT4O = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_TEKKEN = _cased("", r"\p{N}")
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)


@dataclass(frozen=True, slots=True)
class Split:
    """How a kind of vocabulary prepares text.

    Attributes:
        pre_tokenizer: makes the step that splits text and spells its bytes.
        composes: bring characters into their composed form (NFC) first.
        ignores_merges: a piece that is a token as a whole is not merged from its parts.
        adds_bos: a text begins with a token of its own where the file does not say.
    """

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _words()])


def _by(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def make() -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, spell])

    return make


_GPT2_SPLIT = Split(_words)
_SMOLLM_SPLIT = Split(_digits_apart)
_LLAMA3_SPLIT = Split(_by(_LLAMA3), ignores_merges=True, adds_bos=True)
_CL100K_SPLIT = Split(_by(_LLAMA3))
_QWEN2_SPLIT = Split(_by(_QWEN2), composes=True)

SPLITS: Mapping[str, Split] = {
    "gpt-2": _GPT2_SPLIT,
    "phi-2": _GPT2_SPLIT,
    "olmo": _GPT2_SPLIT,
    "smollm": _SMOLLM_SPLIT,
    "starcoder": _SMOLLM_SPLIT,
    "refact": _SMOLLM_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "dbrx": _CL100K_SPLIT,
    "smaug-bpe": _CL100K_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": Split(_by(_TEKKEN), ignores_merges=True, adds_bos=True),
    "gpt-4o": Split(_by(_GPT4O), ignores_merges=True),
    "deepseek-v3": Split(_by(*_DEEPSEEK)),
}


def guess_split(architecture: str, tokens: Sequence[str]) -> str:
    """The split of a file that does not name one, as files of before 2024 do not.

    Args:
        architecture: the file's.
        tokens: its vocabulary.
    """
    if architecture.startswith("qwen"):
        return "qwen2"
    return "llama-bpe" if "<|begin_of_text|>" in tokens else "gpt-2"


def byte_level_pipeline(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], split: Split
) -> tokenizers.Tokenizer:
    """A pipeline over a byte-level vocabulary.

    Args:
        tokens: the vocabulary, in order.
        merges: pairs of tokens to join, the most urgent first.
        split: what comes before merging.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, list(merges), ignore_merges=split.ignores_merges)
    )
    backend.pre_tokenizer = split.pre_tokenizer()
    if split.composes:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend
