"""Models from the Hugging Face hub, through the cache that all its tools share."""

import glob
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from astrai_engine.errors import ModelNotFoundError
from astrai_engine.loading.download_progress import OnProgress, silent_bar
from astrai_engine.loading.hub_files import INDEX, HubName, choose_files, shard_names

_TIMEOUT = 10.0
"""Seconds the hub gets to say what a repository holds before the cache serves alone."""

_logger = logging.getLogger(__name__)


def download(
    name: HubName,
    *,
    revision: str | None = None,
    token: str | None = None,
    on_progress: OnProgress | None = None,
) -> Path:
    """Fetch the files of a model that are needed, or find them in the shared cache.

    What the cache has is not fetched again, and a broken connection is taken up where it broke.
    Without a network, and in offline mode (``HF_HUB_OFFLINE``), the cache alone serves.

    Args:
        name: the repository, and which of its GGUF files.
        revision: branch, tag or commit; None is the repository's main branch.
        token: for private and gated models; None is the one that the hub's own tools keep.
        on_progress: told how far the download is; without it there is a bar on a terminal.

    Returns:
        The checkpoint's folder, or the first part of the GGUF model.

    Raises:
        ModelNotFoundError: there is no such model, it can't be reached, or it is not clear which
            of its files is meant.
    """
    try:
        return _Repository(name, revision, token).fetch(on_progress)
    except ModelNotFoundError:
        raise
    except Exception as error:  # the hub, its transport and the file system each have their own
        found = _cached(name, revision)
        reason = _reason(error)
        if found is None:
            raise ModelNotFoundError(
                f"Model {str(name)!r} is not a folder or file here and could not be downloaded "
                f"from the hub ({reason}); check the name, the network and your access token."
            ) from error
        _logger.warning("%s is served from the cache, since the hub said: %s", name, reason)
        return found


class _Repository:
    """One revision of a repository on the hub."""

    def __init__(self, name: HubName, revision: str | None, token: str | None) -> None:
        # Half a second that every other kind of model is spared.
        from huggingface_hub import HfApi  # noqa: PLC0415

        self._name = name
        self._where: dict[str, Any] = {
            "repo_id": name.repo_id,
            "revision": revision,
            "token": token,
        }
        info = HfApi().model_info(**self._where, timeout=_TIMEOUT, files_metadata=True)
        self._commit = info.sha
        self._sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}

    def fetch(self, on_progress: OnProgress | None) -> Path:
        """See `download`."""
        from huggingface_hub import snapshot_download  # noqa: PLC0415

        wanted = choose_files(self._name, self._sizes, self._read_index)
        if not wanted:
            raise ModelNotFoundError(
                f"{self._name.repo_id} holds no model.safetensors, {INDEX} or .gguf file; only "
                "safetensors and GGUF are read."
            )
        absent = [file for file in wanted if file not in self._sizes]
        if absent:
            raise ModelNotFoundError(
                f"{self._name.repo_id} lacks {', '.join(absent)}, which belong to the model; "
                "choose another revision."
            )
        total = self._bytes_to_fetch(wanted)
        if total:
            _logger.info("Fetching %s from the hub: %.1f MB.", self._name, total / 1e6)
        folder = snapshot_download(
            **self._where,
            allow_patterns=[glob.escape(file) for file in wanted],
            tqdm_class=None if on_progress is None else silent_bar(on_progress, total),
        )
        return _location(Path(folder), wanted)

    def _read_index(self) -> Iterable[str]:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415

        return shard_names(Path(hf_hub_download(filename=INDEX, **self._where)))

    def _bytes_to_fetch(self, wanted: Iterable[str]) -> int:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

        repo_id, commit = self._name.repo_id, self._commit
        paths = {f: try_to_load_from_cache(repo_id, f, revision=commit) for f in wanted}
        return sum(self._sizes[f] for f, path in paths.items() if not isinstance(path, str))


def _cached(name: HubName, revision: str | None) -> Path | None:
    """A model that is in the cache whole; None otherwise."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        # No pattern: whether the files that matter are there is seen below.
        folder = Path(
            snapshot_download(
                name.repo_id, revision=revision, local_files_only=True, allow_patterns=[]
            )
        )
    except (LocalEntryNotFoundError, ValueError):
        return None
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    try:
        wanted = choose_files(name, present, lambda: shard_names(folder / INDEX))
    except ModelNotFoundError:
        if name.choice:
            return None
        raise
    return _location(folder, wanted) if wanted and present.issuperset(wanted) else None


def _location(folder: Path, files: list[str]) -> Path:
    """What the loader opens: a checkpoint's folder, or the first part of a GGUF model."""
    return folder / files[0] if files[0].endswith(".gguf") else folder


def _reason(error: Exception) -> str:
    """What is wrong in few words: the hub's own if it has any."""
    said = getattr(error, "server_message", None) or str(error).strip() or type(error).__name__
    return str(said).splitlines()[0]
