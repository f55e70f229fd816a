"""Which files of a hub repository a model consists of."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from astrai_engine.errors import ModelNotFoundError

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_BESIDE_WEIGHTS = re.compile(
    r"[^/]+\.(json|jinja|model)|additional_chat_templates/[^/]+\.jinja", re.ASCII
)
"""Configuration, tokenizer and templates; subfolders hold the same model in another form."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub as users write it: ``org/name`` or ``org/name:file.gguf``.

    Attributes:
        repo_id: the repository, ``org/name``.
        choice: which of its GGUF files: the file's path, or how its name ends, such as
            ``Q4_K_M``; "" where none was named.
    """

    repo_id: str
    choice: str = ""

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """Take a name apart at its colon."""
        repo_id, _, choice = name.partition(":")
        return cls(repo_id, choice)

    def __str__(self) -> str:
        return f"{self.repo_id}:{self.choice}" if self.choice else self.repo_id


def gguf_models(files: Iterable[str]) -> dict[str, list[str]]:
    """GGUF models among files: the first part's name to the names of all its parts, in order.

    Vision projectors and importance matrices, which lie beside many models, are left out.
    """
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        name = PurePosixPath(file).name.lower()
        if not name.endswith(".gguf") or name.startswith(("mmproj", "imatrix")):
            continue
        split = _SPLIT.fullmatch(file)
        if split is None:
            models[file] = [file]
        elif split["part"] == "00001":
            parts = range(1, int(split["count"]) + 1)
            models[file] = [f"{split['stem']}-{p:05}-of-{split['count']}.gguf" for p in parts]
    return models


def choose_gguf(name: HubName, files: Iterable[str]) -> list[str]:
    """The parts of the one GGUF model that a name means, first part first.

    Args:
        name: what the user asked for.
        files: paths in the repository.

    Raises:
        ModelNotFoundError: none or several match; the message lists what there is.
    """
    models = gguf_models(files)
    found = [first for first, parts in models.items() if name.choice in parts]
    if not found:
        label = re.compile(rf"(.*[-_.])?{re.escape(name.choice)}", re.IGNORECASE)
        found = [first for first in models if label.fullmatch(_stem(first)) or not name.choice]
    if len(found) == 1:
        return models[found[0]]
    asked = f"{name.choice!r} fits" if name.choice else "It holds"
    raise ModelNotFoundError(
        f"{name.repo_id}: {asked} {len(found)} GGUF models. Name one as "
        f"{name.repo_id}:<file>; there are {', '.join(models) or 'none'}."
    )


def _stem(file: str) -> str:
    """A file's name without what all GGUF files have."""
    split = _SPLIT.fullmatch(file)
    return PurePosixPath(split["stem"]).name if split else PurePosixPath(file).stem


def choose_checkpoint(files: Iterable[str], read_index: Callable[[], Iterable[str]]) -> set[str]:
    """A checkpoint's configuration, tokenizer, templates and safetensors, and no other files.

    Args:
        files: paths in the repository.
        read_index: gives the shards that the repository's index names; called if there is one.

    Returns:
        The paths; none where there are no safetensors or no configuration.
    """
    present = set(files)
    if "config.json" not in present:
        return set()
    if _SINGLE in present:
        weights = {_SINGLE}
    elif INDEX in present:
        weights = set(read_index())
    else:
        return set()
    return weights | {file for file in present if _BESIDE_WEIGHTS.fullmatch(file)}


def choose_files(
    name: HubName, files: Iterable[str], read_index: Callable[[], Iterable[str]]
) -> list[str]:
    """The files of a repository that are needed to serve a model, and no others.

    Args:
        name: what the user asked for.
        files: paths in the repository.
        read_index: see `choose_checkpoint`.

    Returns:
        The parts of one GGUF model, or the files of a checkpoint; nothing where there is neither.

    Raises:
        ModelNotFoundError: it is not clear which of several GGUF models is meant.
    """
    present = set(files)
    if not name.choice:
        checkpoint = choose_checkpoint(present, read_index)
        if checkpoint or not gguf_models(present):
            return sorted(checkpoint)
    return choose_gguf(name, present)


def shard_names(index: Path) -> set[str]:
    """The files that an index names.

    Raises:
        ModelNotFoundError: it is not such an index.
    """
    try:
        weight_map: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return set(weight_map.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{index} does not say where the model's tensors are; remove the model and fetch it "
            "again."
        ) from error
