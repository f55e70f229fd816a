"""Chat templates, from every place they are kept in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import ConfigurationError, ModelLoadError
from astrai_engine.loading.folder_tokenizer import read_json, read_tokenizer_config
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.tokenizer import Tokenizer

_GGUF_KEY = "tokenizer.chat_template"


def folder_templates(folder: Path) -> dict[str, str]:
    """The sources of a checkpoint's templates, by name; ``default`` serves where no other does.

    Args:
        folder: keeps them in ``chat_template.jinja``, ``chat_template.json`` or
            ``tokenizer_config.json``, looked at in this order, and more of them, by the names of
            the files, in ``additional_chat_templates/``.

    Raises:
        ModelLoadError: a file can't be read.
    """
    file = folder / "chat_template.jinja"
    kept: Any = (
        _read(file)
        if file.is_file()
        else read_json(folder / "chat_template.json").get("chat_template")
        or read_tokenizer_config(folder).get("chat_template")
    )
    if isinstance(kept, list):
        kept = {entry["name"]: entry["template"] for entry in kept}
    templates = dict(kept) if isinstance(kept, Mapping) else {"default": kept} if kept else {}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read(path)
    return templates


def gguf_templates(file: GGUFFile) -> dict[str, str]:
    """The sources of a GGUF file's templates, by name."""
    default = file.get(_GGUF_KEY)
    templates = {} if default is None else {"default": default}
    for name in file.get("tokenizer.chat_templates", ()):
        templates[name] = file.get(f"{_GGUF_KEY}.{name}", "")
    return {name: source for name, source in templates.items() if source}


def given_templates(path: Path) -> dict[str, str]:
    """The template in a file that the user names instead of the model's.

    Raises:
        ConfigurationError: the file can't be read.
    """
    try:
        return {"default": path.expanduser().read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"chat_template is {str(path)!r}, which can't be read ({error}); name a Jinja file."
        ) from error


def compile_templates(templates: Mapping[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    """Templates ready to render; None where there are none.

    Args:
        templates: sources by name.
        tokenizer: names the tokens that templates may write.

    Raises:
        ModelLoadError: a template is not valid.
    """
    if not templates:
        return None
    return ChatTemplate(templates, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} can't be read ({error}); download it again.") from error
