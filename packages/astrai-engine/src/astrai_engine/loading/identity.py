"""Telling the weights of one model from those of all others, without reading all of them."""

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

_NUM_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16


def model_identity(path: Path) -> str:
    """A name that changes whenever the weights or the configuration of a model do.

    Takes each file's name, size, time of change and evenly spread parts of its content: reading
    the rest would make a start take as long again as loading.

    Args:
        path: the file or the folder of the model.
    """
    identity = blake2b(digest_size=16)
    for file in _files(path):
        status = file.stat()
        identity.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        for sample in _samples(file, status.st_size):
            identity.update(sample)
    return identity.hexdigest()


def _files(path: Path) -> list[Path]:
    """What K/V depend on: weights, in all their parts, and their configuration."""
    if path.is_file():
        return sorted(path.parent.glob(re.sub(r"-\d{5}-of-", "-?????-of-", path.name)))
    return [path / "config.json", *sorted(path.glob("*.safetensors"))]


def _samples(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number in range(_NUM_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1))
            yield file.read(_SAMPLE_BYTES)
