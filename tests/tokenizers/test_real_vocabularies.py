"""Vocabularies of well-known models, as GGUF files have them: the ids of their own tokenizers.

Run by ``nox -s tokenizers``, which fetches them; ``ASTRAI_TEST_TOKENIZERS`` is the folder they
are in, each in a folder of its own with ``tokenizer.json`` and ``tokenizer_config.json``.
"""

import json
import os
import unicodedata
from pathlib import Path

import gguf
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.loading.folder_tokenizer import read_tokenizer as read_folder
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.gguf_tokenizer import read_tokenizer
from astrai_engine.loading.templates import compile_templates, folder_templates
from astrai_engine.tokenizer import encode_chat, render_chat

pytestmark = pytest.mark.tokenizers

ROOT = Path(__file__).parents[2]
ODD_TEXTS = json.loads(
    (ROOT / "packages/astrai-engine/tests/data/odd_texts.json").read_text("utf-8")
)
FAMILIES = {
    "qwen3": {"pre": "qwen2", "architecture": "qwen3"},
    "llama3_1": {"pre": "llama-bpe", "architecture": "llama"},
    "gptoss": {"pre": "gpt-4o", "architecture": "llama"},
    "deepseek_v3": {"pre": "deepseek-v3", "architecture": "llama"},
    "llama2": {"model": "llama", "architecture": "llama"},
    "gemma3": {"model": "llama", "architecture": "gemma3", "add_space_prefix": False},
}
FIRST_SCORED = {"llama2": 259, "gemma3": 0}
"""The first piece that SentencePiece scores; it and those behind it have 0, -1, -2, ..."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family):
    return Path(os.environ["ASTRAI_TEST_TOKENIZERS"]) / family


@pytest.fixture(scope="module")
def original(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def rebuilt(folder, family, tmp_path_factory):
    """What we make of the file that llama.cpp's converter would write."""
    path = tmp_path_factory.mktemp(family) / "vocabulary.gguf"
    pipeline = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    options = dict(FAMILIES[family])
    writer = gguf.GGUFWriter(path, options.pop("architecture"))
    model = options.pop("model", "gpt2")
    writer.add_tokenizer_model(model)
    if "pre" in options:
        writer.add_tokenizer_pre(options.pop("pre"))
    tokens, types = vocabulary(pipeline)
    if model == "llama":
        first = FIRST_SCORED[family]
        scores = [
            score(token, kind, first - i)
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        ]
        writer.add_token_scores(scores)
    else:
        merges = pipeline["model"]["merges"]
        writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    first_token = pipeline["post_processor"].get("single") or next(
        (p["single"] for p in pipeline["post_processor"].get("processors", ()) if "single" in p), []
    )
    bos = next((part["SpecialToken"]["id"] for part in first_token if "SpecialToken" in part), None)
    writer.add_add_bos_token(bos is not None)
    if bos is not None:
        writer.add_bos_token_id(tokens.index(bos))
    for name, value in options.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_tokenizer(GGUFFile(path))


def score(token, kind, rank):
    """Llama 2's runs of spaces were added last."""
    if kind != 1:
        return -1000.0
    return -1e9 if set(token) == {"\u2581"} and len(token) > 1 else float(rank)


def looks_special(token):
    return token.startswith(("<|", "<\uff5c", "<unused")) and token.endswith(">")


def vocabulary(pipeline):
    """Tokens and their kinds, as the converter writes them."""
    added = {token["id"]: token for token in pipeline["added_tokens"]}
    ids = {i: token for token, i in pipeline["model"]["vocab"].items()}
    size = max([*ids, *added]) + 1
    tokens, types = [], []
    for i in range(size):
        token = added[i]["content"] if i in added else ids.get(i, f"[PAD{i}]")
        kind = 1 if i in ids else 5
        if i in added:
            kind = 3 if added[i]["special"] or looks_special(token) else 4
        elif pipeline["model"].get("byte_fallback") and token.startswith("<0x"):
            kind = 6
        if token == pipeline["model"].get("unk_token"):
            kind = 2
        tokens.append(token.replace("\u2581", " ") if kind == 4 else token)
        types.append(kind)
    return tokens, types


def test_ids_of_odd_texts(original, rebuilt):
    assert len(ODD_TEXTS) >= 500
    for text in ODD_TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text, add_special_tokens=False) == ids, text
        assert rebuilt.encode(text, add_special_tokens=True) == original.encode(text).ids, text


def test_decoding_gives_the_text_back(original, rebuilt, family):
    for text in ODD_TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        expected = unicodedata.normalize("NFC", text) if family == "qwen3" else text
        if "\u2581" in text and family in FIRST_SCORED:
            continue  # SentencePiece's own mark is a space to it
        if family == "llama2":
            if not text or rebuilt.special_token_ids & set(ids):
                continue  # what follows a control token gets a space as well
            expected = " " + text
        assert rebuilt.decode(ids, skip_special_tokens=False) == expected, text


def test_control_tokens_in_user_text_stay_text(rebuilt):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    for text in ODD_TEXTS:
        chat = render_chat(template, rebuilt, [{"role": "user", "content": text}])
        assert not rebuilt.special_token_ids & set(encode_chat(chat, rebuilt)), text


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CHATS = [
    [{"role": "user", "content": "hi \u00fc"}],
    [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": " Why? "},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
]


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("messages", CHATS, ids=["one", "several", "system"])
def test_templates_and_their_ids(folder, messages, tools):
    ours = read_folder(folder)
    template = compile_templates(folder_templates(folder), ours)
    if template is None:
        pytest.skip("this one carries no template")
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    named = {
        key: token["content"] if isinstance(token, dict) else token
        for key in ("bos_token", "eos_token")
        if (token := config.get(key))
    }
    reference = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=config["chat_template"],
        **named,
    )
    text = reference.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    if tools is not None and "tools" not in template.tool_source:
        pytest.skip("this one knows of no tools")
    assert template.render(messages, tools=tools) == text
    chat = render_chat(template, ours, messages, tools=tools)
    assert encode_chat(chat, ours) == reference.encode(text, add_special_tokens=False)
