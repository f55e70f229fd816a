"""Tokenizers rebuilt from GGUF metadata give the original's ids."""

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.gguf_tokenizer import read_tokenizer
from astrai_engine.loading.source import resolve_source
from astrai_engine.tokenizer import encode_chat, render_chat

ODD_TEXTS = json.loads((Path(__file__).parent / "data" / "odd_texts.json").read_text("utf-8"))
"""Every script, emoji, white space, control tokens spelled as text, code, and mixtures."""
SPACES_BEFORE_DIGITS = ["  1", "a  12 34", "tab\t\t9", "\r\n1", "\u00bd \u00b2", "\u2167 \u2460"]


@pytest.fixture(scope="module")
def path():
    return Path(resolve_source(None).location)


@pytest.fixture(scope="module")
def tokenizer(path):
    return read_tokenizer(GGUFFile(path))


@pytest.fixture(scope="module")
def reference(path, quick_transformers):
    """What transformers makes of the same file."""
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def own(reference):
    """The model's own way of splitting, which transformers does not take from the file.

    It splits as GPT-2 does and so joins a space to a digit. The file names ``smollm``, which sets
    each digit apart first: the spaces before it then are one token. No token has two digits.
    """
    own = tokenizers.Tokenizer.from_str(reference.backend_tokenizer.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    own.pre_tokenizer = pre_tokenizers.Sequence([digits, own.pre_tokenizer])
    return own


def test_ids_of_odd_texts_equal_the_model_s_own(tokenizer, own):
    """B185: with and without what the model adds."""
    assert len(ODD_TEXTS) >= 500
    for text in ODD_TEXTS:
        ids = own.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.encode(text, add_special_tokens=True) == own.encode(text).ids, text


def test_each_digit_is_split_off_before_words_are(tokenizer, reference):
    """B185: where transformers differs from the model's own tokenizer, ours does too."""
    assert set(SPACES_BEFORE_DIGITS) <= set(ODD_TEXTS)
    for text in SPACES_BEFORE_DIGITS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids != reference.encode(text, add_special_tokens=False)


def test_decoding_gives_the_text_back(tokenizer):
    for text in ODD_TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == tokenizer.decode(ids).encode()


def test_special_tokens(tokenizer, reference):
    assert tokenizer.bos_token == reference.bos_token
    assert tokenizer.eos_token == reference.eos_token
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.special_token_ids == set(range(17))


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What is the capital of France?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " hi \n"}],
        [
            {"role": "user", "content": "\u00fc\U0001f642"},
            {"role": "assistant", "content": "2 + 2 = 4"},
            {"role": "user", "content": "<b>why</b>"},
        ],
    ],
)
def test_rendered_chats_and_their_ids_equal_transformers(
    path, tokenizer, reference, messages, prompt
):
    source = GGUFFile(path).get("tokenizer.chat_template")
    template = ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token)
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert template.render(messages, add_generation_prompt=prompt) == text
    chat = render_chat(template, tokenizer, messages, add_generation_prompt=prompt)
    assert encode_chat(chat, tokenizer) == reference.encode(text, add_special_tokens=False)


def trained(pre_tokenizer):
    """A small byte-level vocabulary, trained here."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(ODD_TEXTS * 2, trainer)
    return backend


def write(
    path,
    tokens,
    *,
    architecture="llama",
    model="gpt2",
    pre=None,
    merges=None,
    types=None,
    **fields,
):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [1] * len(tokens))
    if merges is not None:
        writer.add_token_merges(merges)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def by(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, spell])


def digits_apart():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])


def write_trained(path, original, *, pre=None, **fields):
    """A file as the converter writes it for a byte-level tokenizer."""
    vocab = original.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    state = original.model.__getstate__().decode()
    merges = [" ".join(pair) for pair in json.loads(state)["merges"]]
    types = [3 if token == "<|end|>" else 1 for token in tokens]
    return write(path, tokens, pre=pre, merges=merges, types=types, **fields)


@pytest.mark.parametrize(
    ("pre", "architecture", "split"),
    [
        (None, "llama", GPT2),
        ("default", "llama", GPT2),
        ("gpt-2", "llama", GPT2),
        ("smollm", "llama", digits_apart()),
        ("llama-bpe", "llama", by(LLAMA3)),
        ("dbrx", "phi3", by(LLAMA3)),
        ("qwen2", "qwen2", by(LLAMA3.replace("{1,3}", ""))),
        (None, "qwen3", by(LLAMA3.replace("{1,3}", ""))),
        ("tekken", "llama", by(TEKKEN)),
    ],
)
def test_byte_level_vocabularies_split_as_the_file_says(tmp_path, pre, architecture, split):
    """B185: each named way of splitting, on a vocabulary trained with it."""
    original = trained(split)
    if architecture.startswith("qwen"):
        original.normalizer = normalizers.NFC()
    file = write_trained(tmp_path / "m.gguf", original, pre=pre, architecture=architecture)
    rebuilt = read_tokenizer(file)
    for text in [*ODD_TEXTS, "a<|end|>b"]:
        expected = original.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text, add_special_tokens=False) == expected, text


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_a_file_that_does_not_say_so_begins_texts_as_its_kind_does(tmp_path, pre, adds):
    original = trained(GPT2)
    end = original.token_to_id("<|end|>")
    ids = {}
    for say in (None, True, False):
        fields = {} if say is None else {"add_bos_token": say, "add_eos_token": say}
        path = tmp_path / f"{say}.gguf"
        file = write_trained(path, original, pre=pre, bos_token_id=end, eos_token_id=end, **fields)
        ids[say] = read_tokenizer(file).encode("a", add_special_tokens=True)
    assert len(ids[False]) == 1
    assert ids[True] == [end, *ids[False], end]
    assert ids[None] == ([end] if adds else []) + ids[False]


def test_qwen2_composes_characters_first(tmp_path):
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    rebuilt = read_tokenizer(write(tmp_path / "m.gguf", tokens, pre="qwen2", merges=[]))
    apart = rebuilt.encode("e\u0301", add_special_tokens=False)
    assert apart == rebuilt.encode("\u00e9", add_special_tokens=False)


SPM_TOKENS = [
    "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
    "\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "\u2581ab", "abc", "<tool>",
]  # fmt: skip
SPM_TYPES = [2, 3, 3, *[6] * 256, *[1] * 9, 4]
SPM_SCORES = [0.0] * 259 + [-9.0, -9.1, -9.2, -9.3, -4.0, -3.0, -2.0, -5.0, -6.0, 0.0]


def sentencepiece(path, **fields):
    file = write(
        path,
        SPM_TOKENS,
        model="llama",
        types=SPM_TYPES,
        token_scores=SPM_SCORES,
        bos_token_id=1,
        eos_token_id=2,
        **fields,
    )
    return read_tokenizer(file)


def spell(tokenizer, text, **options):
    ids = tokenizer.encode(text, add_special_tokens=False, **options)
    return [SPM_TOKENS[i] for i in ids]


def test_sentencepiece_joins_the_best_scored_pair_first(tmp_path):
    tokenizer = sentencepiece(tmp_path / "m.gguf")
    assert spell(tokenizer, "abc") == ["\u2581a", "bc"]
    assert spell(tokenizer, "ab") == ["\u2581ab"]
    assert spell(tokenizer, " a") == ["\u2581", "\u2581a"]
    assert spell(tokenizer, "\u00e9") == ["\u2581", "<0xC3>", "<0xA9>"]
    assert spell(tokenizer, "b<tool></s>") == ["\u2581", "b", "<tool>", "</s>"]
    assert tokenizer.encode("a", add_special_tokens=True)[0] == 1


def test_sentencepiece_without_the_leading_space(tmp_path):
    tokenizer = sentencepiece(tmp_path / "m.gguf", add_space_prefix=False, add_bos_token=False)
    assert spell(tokenizer, "ab") == ["ab"]
    assert tokenizer.encode("ab", add_special_tokens=True) == [SPM_TOKENS.index("ab")]


def test_user_defined_runs_of_spaces_are_tokens(tmp_path):
    """Gemma's: a file spells them as spaces, scored as the last pieces of all."""
    tokens = [*SPM_TOKENS, "  ", "    "]
    file = write(
        tmp_path / "m.gguf",
        tokens,
        model="llama",
        types=[*SPM_TYPES, 4, 4],
        token_scores=[*SPM_SCORES, -1000.0, -1000.0],
        add_space_prefix=False,
        add_bos_token=False,
    )
    tokenizer = read_tokenizer(file)
    two, four = len(SPM_TOKENS), len(SPM_TOKENS) + 1
    ids = tokenizer.encode("  a    b", add_special_tokens=False)
    assert ids == [two, SPM_TOKENS.index("a"), four, SPM_TOKENS.index("b")]
    assert tokenizer.decode(ids) == "  a    b"


def test_phi3_s_control_tokens_swallow_the_spaces_behind_them(tmp_path):
    fields = {"architecture": "phi3", "model": "llama", "token_scores": SPM_SCORES}
    file = write(tmp_path / "m.gguf", SPM_TOKENS, types=SPM_TYPES, **fields)
    tokenizer = read_tokenizer(file)
    assert spell(tokenizer, "</s> \n a<s> a") == ["</s>", "\u2581a", "<s>", "\u2581", "\u2581a"]


def test_sentencepiece_text_is_the_same_in_any_place(tmp_path):
    """B068: a token's space belongs to it, at the start of a text as in the middle."""
    tokenizer = sentencepiece(tmp_path / "m.gguf")
    spaced, byte = SPM_TOKENS.index("\u2581a"), SPM_TOKENS.index("<0xC3>")
    assert tokenizer.decode([spaced]) == " a"
    assert tokenizer.decode([1, spaced]) == " a"
    assert tokenizer.token_bytes(byte) == b"\xc3"
    assert tokenizer.token_bytes(SPM_TOKENS.index("<tool>")) == b"<tool>"
    assert tokenizer.token_bytes(1) == b""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "rwkv"}, "of kind 'rwkv', which is not supported; supported are gpt2, llama"),
        ({"pre": "falcon", "merges": []}, "splits text as 'falcon', which is not supported"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path, fields, message):
    with pytest.raises(ModelLoadError, match=message):
        read_tokenizer(write(tmp_path / "m.gguf", ["a"], **fields))


def test_a_named_token_outside_the_vocabulary_is_none(tmp_path):
    """B179: no crash on an id that does not exist."""
    file = write(tmp_path / "m.gguf", ["a"], pre="gpt-2", merges=[], eos_token_id=7)
    assert read_tokenizer(file).eos_token is None
