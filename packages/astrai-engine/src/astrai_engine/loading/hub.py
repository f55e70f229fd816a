"""Checkpoints from the Hugging Face hub."""

from pathlib import Path

from astrai_engine.errors import ModelNotFoundError

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]
"""Subfolders and files that hold the same weights in another form."""


def download(repo_id: str) -> Path:
    """Fetch the files of a checkpoint that are needed, or find them in the shared cache.

    Args:
        repo_id: such as ``org/name``.

    Returns:
        The folder they are in.

    Raises:
        ModelNotFoundError: there is no such model, or it can't be reached.
    """
    # Half a second that every other kind of model is spared.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # the hub, its transport and the file system each have their own
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotFoundError(
            f"Model {repo_id!r} is not a folder or file here and could not be downloaded from the "
            f"hub ({reason[0]}); check the name, the network and your access token."
        ) from error
