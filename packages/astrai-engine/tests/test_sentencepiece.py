"""SentencePiece vocabularies give the ids of SentencePiece itself."""

import json
from pathlib import Path

import pytest
import sentencepiece

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.folder_tokenizer import read_tokenizer
from astrai_engine.loading.sentencepiece import Kind, read_pieces

ODD_TEXTS = json.loads((Path(__file__).parent / "data" / "odd_texts.json").read_text("utf-8"))


def train(folder, **options):
    """A small ``tokenizer.model`` with the settings of Llama 2's."""
    settings = {
        "model_type": "bpe",
        "vocab_size": 700,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "character_coverage": 1.0,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["<tool>"],
        "minloglevel": 2,
    } | options
    words = [text for text in ODD_TEXTS if text.isascii() and text.isprintable()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_prefix=str(folder / "tokenizer"), **settings
    )
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama-like")
    return folder, train(folder)


def test_ids_of_odd_texts_equal_sentencepiece_s(llama_like):
    folder, reference = llama_like
    tokenizer = read_tokenizer(folder)
    named = ("<s>", "</s>", "<unk>", "<tool>")
    for text in ODD_TEXTS:
        if not any(name in text for name in named):  # it takes text for text, always
            assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text), text
    assert tokenizer.encode("a", add_special_tokens=True) == [1, *reference.encode("a")]
    assert tokenizer.vocab_size == reference.get_piece_size()


def test_decoding_gives_the_text_back(llama_like):
    folder, _ = llama_like
    tokenizer = read_tokenizer(folder)
    for text in ODD_TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if "\u2581" not in text and not {0, 1, 2} & set(ids):
            assert tokenizer.decode(ids) == (" " + text if text else ""), text


def test_without_a_space_in_front_and_with_characters_replaced(tmp_path):
    reference = train(
        tmp_path, add_dummy_prefix=False, normalization_rule_name="nfkc", vocab_size=800
    )
    tokenizer = read_tokenizer(tmp_path)
    assert read_pieces(tmp_path / "tokenizer.model").charsmap
    for text in ("abc", "\ufb01x", "\u00b2", "\u2167", "the fox", "a"):
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text), text


def test_the_space_in_front_of_the_whole_text_only(llama_like):
    """``legacy: false``: what follows a control token gets none."""
    folder, reference = llama_like
    config = folder / "tokenizer_config.json"
    before = config.read_text()
    config.write_text('{"bos_token": "<s>", "eos_token": "</s>", "legacy": false}')
    tokenizer = read_tokenizer(folder)
    config.write_text(before)
    for whole, text in ((tokenizer, " thethe"), (read_tokenizer(folder), " the the")):
        assert whole.decode(whole.encode("the</s>the", add_special_tokens=False)) == text
        assert whole.encode("the", add_special_tokens=False) == reference.encode("the")


def test_added_tokens_beside_the_model(tmp_path):
    """B186: what ``added_tokens.json`` lists comes behind the vocabulary, in its order."""
    size = train(tmp_path).get_piece_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<b>": size + 1, "<a>": size}))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.encode("<a><b>", add_special_tokens=False) == [size, size + 1]
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_pieces_of_the_file(llama_like):
    folder, reference = llama_like
    pieces = read_pieces(folder / "tokenizer.model")
    size = range(reference.get_piece_size())
    assert list(pieces.tokens) == [reference.id_to_piece(i) for i in size]
    assert list(pieces.scores) == [reference.get_score(i) for i in size]
    assert pieces.kinds[:4] == [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, Kind.USER_DEFINED]
    assert pieces.adds_space


@pytest.mark.parametrize(
    "content", [b"\x0a\xff", b"\x0a\x02\x0a", b"<html>", b"\xff" * 40, b"\x08\x01"]
)
def test_a_damaged_file_is_one_sentence(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model is "):
        read_tokenizer(tmp_path)


def test_another_kind_is_refused(tmp_path):
    train(tmp_path, model_type="unigram", vocab_size=400)
    with pytest.raises(ModelLoadError, match="of another kind than BPE"):
        read_tokenizer(tmp_path)
