"""Tokenizers rebuilt from GGUF metadata give the original's ids."""

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.gguf_tokenizer import read_tokenizer
from astrai_engine.loading.source import resolve_source
from astrai_engine.tokenizer import encode_chat, render_chat

ODD_TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\t\t x",
    "\r\n\r\n",
    "trailing   ",
    "   leading",
    "a  b   c    d",
    "a\u00a0b\u2003c\u200bd",
    "Hello, world!",
    "HELLO WORLD hello World",
    "don't I'LL they've we're he'd I'm",
    "DON'T I\u2019ll",
    "1",
    "12345",
    "x1y22z333",
    " 1 22 333",
    "3.14159 -1,000.50 1e-9",
    "v1.2.3-rc4",
    "0x7fff_ffff",
    "\u0663\u0664\u0665 \u0967\u0968",
    "x\u00b2+y\u00b3=\u00bd",
    "na\u00efve café \u00fc\u00df",
    "e\u0301 vs \u00e9",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\uc548\ub155\ud558\uc138\uc694",
    "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439\u0442\u0435",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f642\U0001f680",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\U0001d49c\U0001d4b7 \ufb01",
    "\u0000\u0001\u001f\u007f",
    "\ufeffBOM \ufffd \ufffe",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_end|><|endoftext|>",
    " <|im_end|> ",
    "<|im_start",
    "<|IM_START|> < |im_end| >",
    "<repo_name>x<file_sep>y",
    "<s></s><unk>[PAD]<0x0A>",
    "def f(x):\n    return x  # ok\n\n\tif y:\n",
    '{"a": [1, 2, {"b": null}]}',
    "https://example.org/a?b=c&d=%20#e",
    "$\\frac{a}{b} \\leq \\alpha_{ij}$",
    "|---|:-:|\n| a | b |",
    "!!!???...,,,;;;:::",
    "((([[[{{{}}}]]])))",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "supercalifragilisticexpialidocious",
    "\u0120\u010a\u0100",
    "a\u0308\u0323\u0302b",
    "\u2028\u2029\u0085",
    "ABCdefGHI_jkl-MNO.pqr/STU\\vwx",
]
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


def test_ids_equal_transformers(tokenizer, reference):
    """B185: odd texts, with and without what the model adds."""
    assert len(ODD_TEXTS) >= 50
    for text in ODD_TEXTS:
        expected = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.encode(text, add_special_tokens=True) == reference.encode(text), text


def test_each_digit_is_split_off_before_words_are(tokenizer, reference):
    """B185: transformers splits this file's text as GPT-2 does and so joins a space to a digit.

    The model's own tokenizer, which the file names ``smollm``, sets each digit apart first: the
    spaces before it then are one token. Its vocabulary has no token of two digits.
    """
    backend = reference.backend_tokenizer
    own = tokenizers.Tokenizer.from_str(backend.to_str())
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    for text in SPACES_BEFORE_DIGITS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == own.encode(text, add_special_tokens=False).ids
        assert ids != reference.encode(text, add_special_tokens=False)
    for text in ODD_TEXTS:
        assert own.encode(text, add_special_tokens=False).ids == reference.encode(text)


def test_decoding_gives_the_text_back(tokenizer):
    for text in ODD_TEXTS + SPACES_BEFORE_DIGITS:
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
    backend.train_from_iterator(ODD_TEXTS * 2 + SPACES_BEFORE_DIGITS, trainer)
    return backend


def write(path, tokens, *, model="gpt2", pre=None, merges=None, types=None, **fields):
    writer = gguf.GGUFWriter(path, "llama")
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


def gpt2_split():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def llama3_split(digits=3):
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,"
        + str(digits)
        + r"}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


@pytest.mark.parametrize(
    ("pre", "split"),
    [
        (None, gpt2_split),
        ("default", gpt2_split),
        ("gpt-2", gpt2_split),
        ("llama-bpe", llama3_split),
        ("qwen2", lambda: llama3_split(digits=1)),
    ],
)
def test_byte_level_vocabularies_split_as_the_file_says(tmp_path, pre, split):
    """B185: each named way of splitting, on a vocabulary trained with it."""
    original = trained(split())
    vocab = original.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    state = original.model.__getstate__().decode()
    merges = [" ".join(pair) for pair in json.loads(state)["merges"]]
    types = [3 if token == "<|end|>" else 1 for token in tokens]
    file = write(tmp_path / "m.gguf", tokens, pre=pre, merges=merges, types=types)
    rebuilt = read_tokenizer(file)
    for text in [*ODD_TEXTS, *SPACES_BEFORE_DIGITS, "a<|end|>b"]:
        composed = "\u0301" not in text and "\u0308" not in text
        if composed or pre != "qwen2":  # qwen2 composes characters first
            expected = original.encode(text, add_special_tokens=False).ids
            assert rebuilt.encode(text, add_special_tokens=False) == expected


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
        ({"pre": "tekken", "merges": []}, "splits text as 'tekken', which is not supported"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path, fields, message):
    with pytest.raises(ModelLoadError, match=message):
        read_tokenizer(write(tmp_path / "m.gguf", ["a"], **fields))


def test_a_named_token_outside_the_vocabulary_is_none(tmp_path):
    """B179: no crash on an id that does not exist."""
    file = write(tmp_path / "m.gguf", ["a"], pre="gpt-2", merges=[], eos_token_id=7)
    assert read_tokenizer(file).eos_token is None
