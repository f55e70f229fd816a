"""Templates are found in every place they are kept in."""

import json

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models

from astrai_engine.errors import (
    ConfigurationError,
    InvalidRequestError,
    ModelLoadError,
    TemplateError,
)
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.templates import (
    compile_templates,
    folder_templates,
    gguf_templates,
    given_templates,
)
from astrai_engine.prompt import PromptEncoder
from astrai_engine.request import GenerationRequest
from astrai_engine.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
NAMED = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]


@pytest.fixture
def tokenizer():
    backend = tokenizers.Tokenizer(models.BPE({"h": 0, "i": 1, "<s>": 2}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, bos_token="<s>")


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_the_file_of_its_own_wins_over_the_older_places(tmp_path):
    assert folder_templates(tmp_path) == {}
    write(tmp_path / "tokenizer_config.json", {"chat_template": "config"})
    assert folder_templates(tmp_path) == {"default": "config"}
    write(tmp_path / "chat_template.json", {"chat_template": "json"})
    assert folder_templates(tmp_path) == {"default": "json"}
    write(tmp_path / "chat_template.jinja", "jinja")
    assert folder_templates(tmp_path) == {"default": "jinja"}


def test_named_templates(tmp_path, tokenizer):
    write(tmp_path / "tokenizer_config.json", {"chat_template": NAMED})
    template = compile_templates(folder_templates(tmp_path), tokenizer)
    assert template.render(MESSAGES) == "d"
    assert template.render(MESSAGES, tools=[{}]) == "t"


def test_additional_templates_have_the_names_of_their_files(tmp_path, tokenizer):
    write(tmp_path / "chat_template.jinja", "{{ bos_token }}d")
    write(tmp_path / "additional_chat_templates" / "tool_use.jinja", "t")
    write(tmp_path / "additional_chat_templates" / "rag.jinja", "r")
    templates = folder_templates(tmp_path)
    assert templates == {"default": "{{ bos_token }}d", "tool_use": "t", "rag": "r"}
    template = compile_templates(templates, tokenizer)
    assert (template.render(MESSAGES), template.tool_source) == ("<s>d", "t")


def gguf_file(path, template):
    writer = gguf.GGUFWriter(path, "llama")
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (None, {}),
        ("d", {"default": "d"}),
        (NAMED, {"default": "d", "tool_use": "t"}),
    ],
)
def test_gguf_files_keep_one_or_several(tmp_path, kept, found):
    assert gguf_templates(gguf_file(tmp_path / "m.gguf", kept)) == found


def test_a_template_the_user_gives(tmp_path, tokenizer):
    write(tmp_path / "mine.jinja", "{{ bos_token }}{{ messages[0].content }}")
    template = compile_templates(given_templates(tmp_path / "mine.jinja"), tokenizer)
    assert template.render(MESSAGES) == "<s>hi"
    with pytest.raises(ConfigurationError, match=r"chat_template is .*absent.* name a Jinja file"):
        given_templates(tmp_path / "absent")


def test_a_file_that_is_no_text_is_one_sentence(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja can't be read"):
        folder_templates(tmp_path)
    (tmp_path / "mine.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="can't be read"):
        given_templates(tmp_path / "mine.jinja")


def test_a_template_that_is_not_valid(tokenizer):
    with pytest.raises(ModelLoadError, match="is not valid"):
        compile_templates({"default": "{% if %}"}, tokenizer)


def test_without_any_chats_are_refused_with_what_to_do_and_completions_work(tokenizer):
    """B181: there is no fallback that might lack what the model expects around a text."""
    assert compile_templates({}, tokenizer) is None
    prompts = PromptEncoder(tokenizer, None, vocab_size=3, max_seq_len=8)
    with pytest.raises(TemplateError, match=r"raw prompt, or .* ASTRAI_CHAT_TEMPLATE"):
        prompts.encode(GenerationRequest(messages=MESSAGES))
    assert prompts.encode(GenerationRequest(prompt="hi")).token_ids == [0, 1]
    with pytest.raises(InvalidRequestError):
        prompts.encode(GenerationRequest(prompt=""))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'] }}",
        "{% include '/etc/passwd' %}",
        "{{ messages[0].__class__.__base__ }}",
    ],
)
def test_a_template_gets_at_nothing_but_the_chat(tokenizer, source):
    with pytest.raises(TemplateError, match="refuses these messages"):
        compile_templates({"default": source}, tokenizer).render(MESSAGES)
