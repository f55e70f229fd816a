"""The models in the hub's shared cache: what is there, fetch one, remove one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from astrai_engine.errors import ModelNotFoundError
from astrai_engine.loading.download_progress import OnProgress
from astrai_engine.loading.hub import download
from astrai_engine.loading.hub_files import (
    INDEX,
    HubName,
    choose_checkpoint,
    choose_gguf,
    gguf_models,
    shard_names,
)

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the cache that can be served.

    Attributes:
        name: what to name it: ``org/name``, or ``org/name:file.gguf``.
        path: the checkpoint's folder, or the first part of the GGUF model.
        size: bytes of its files.
        revision: the commit they are from.
        modified: when it was fetched, in seconds since 1970.
    """

    name: str
    path: Path
    size: int
    revision: str
    modified: float


def list_models() -> list[StoredModel]:
    """The models that can be served from the cache, by name.

    The cache is that of all the hub's tools; what is no checkpoint or GGUF file, and what is there
    only in part, is left out. Of several revisions each is listed, the main branch's first.
    """
    return list(_every_model(_scan()))


def pull_model(
    name: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    on_progress: OnProgress | None = None,
) -> StoredModel:
    """Fetch a model into the cache, or bring what is there up to date.

    Args:
        name: ``org/name``, or ``org/name:file.gguf``; how the file's name ends, such as
            ``Q4_K_M``, will do if no other ends so.
        revision: branch, tag or commit; None is the main branch.
        token: for private and gated models; None is the one that the hub's own tools keep.
        on_progress: gets the bytes fetched so far and the bytes to fetch in all, from several
            threads, one at a time; without it there is a bar on a terminal.

    Raises:
        ModelNotFoundError: there is no such model, it can't be reached, or it is not clear which
            of its files is meant.
    """
    path = download(HubName.parse(name), revision=revision, token=token, on_progress=on_progress)
    for model in _every_model(_scan()):
        if model.path == path:
            return model
    raise ModelNotFoundError(f"{name} left the cache while it was fetched; fetch it again.")


def remove_model(name: str) -> int:
    """Remove a model from the cache, for all the tools that share it.

    Args:
        name: ``org/name`` removes all that is there of a repository, whatever it holds;
            ``org/name:file.gguf`` that GGUF model alone.

    Returns:
        Bytes freed.

    Raises:
        ModelNotFoundError: it is not in the cache, or it is not clear which file is meant.
    """
    wanted = HubName.parse(name)
    cache = _scan()
    repo = next((r for r in _repositories(cache) if r.repo_id == wanted.repo_id), None)
    if cache is None or repo is None:
        raise ModelNotFoundError(f"{name} is not in the cache.")
    if wanted.choice:
        parts = choose_gguf(wanted, {_name(f, v) for v in repo.revisions for f in v.files})
        doomed = [f for v in repo.revisions for f in v.files if _name(f, v) in parts]
        strategy = cache.delete_files(*doomed)
    else:
        strategy = cache.delete_revisions(*(v.commit_hash for v in repo.revisions))
    strategy.execute()
    return strategy.expected_freed_size


def _scan() -> "HFCacheInfo | None":
    from huggingface_hub import constants, scan_cache_dir  # noqa: PLC0415 (half a second)
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None


def _repositories(cache: "HFCacheInfo | None") -> "list[CachedRepoInfo]":
    repos = [repo for repo in cache.repos if repo.repo_type == "model"] if cache else []
    return sorted(repos, key=lambda repo: repo.repo_id)


def _every_model(cache: "HFCacheInfo | None") -> Iterator[StoredModel]:
    for repo in _repositories(cache):
        for revision in sorted(repo.revisions, key=lambda r: ("main" not in r.refs, r.commit_hash)):
            yield from _models(repo, revision)


def _models(repo: "CachedRepoInfo", revision: "CachedRevisionInfo") -> Iterator[StoredModel]:
    """What of a repository can be served: its checkpoint, and each of its GGUF models."""
    files = {_name(file, revision): file for file in revision.files}
    folder = revision.snapshot_path
    wanted = choose_checkpoint(files, lambda: shard_names(folder / INDEX))
    groups = [(repo.repo_id, folder, wanted)] if wanted else []
    for first, parts in gguf_models(files).items():
        groups.append((f"{repo.repo_id}:{first}", folder / first, set(parts)))
    for name, path, members in groups:
        if members <= files.keys():
            yield StoredModel(
                name=name,
                path=path,
                size=sum(files[member].size_on_disk for member in members),
                revision=revision.commit_hash,
                modified=max(files[member].blob_last_modified for member in members),
            )


def _name(file: "CachedFileInfo", revision: "CachedRevisionInfo") -> str:
    """A file's path in its repository."""
    return file.file_path.relative_to(revision.snapshot_path).as_posix()
