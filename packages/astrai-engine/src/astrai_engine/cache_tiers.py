"""Where pages go that the pool has no more room for: host memory, and a folder on disk."""

import errno
import logging
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

import astrai_kernels
from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError
from astrai_kvcache import HostTier, PagePool, PageTier
from astrai_kvcache.disk_tier import DiskTier

_logger = logging.getLogger(__name__)

_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)
"""A full disk, and a folder that another process uses: reasons to serve without the tier."""


class CacheTiers:
    """The tiers of one engine, as far as they were asked for.

    A folder on disk is one process's own; another one that finds it in use, or a full disk, serves
    without, with a warning.

    Args:
        config: what was asked for.

    Raises:
        ConfigurationError: the folder cannot be used at all.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._host = HostTier(config.host_cache_bytes) if config.host_cache_bytes else None
        self._disk: DiskTier | None = None
        self._lock: TextIOWrapper | None = None
        if config.disk_cache_bytes:
            chosen = config.cache_dir
            folder = (Path(chosen) if chosen else astrai_kernels.cache_dir()) / "pages"
            try:
                self._lock = _locked(folder.with_suffix(".lock"))
                self._disk = DiskTier(folder, config.disk_cache_bytes)
            except OSError as error:
                self.close()
                if error.errno not in _TRANSIENT:
                    raise ConfigurationError(
                        f"The disk tier of the prefix cache cannot use {folder}: {error}. Make it "
                        "writable, choose another cache_dir, or set disk_cache_bytes to 0."
                    ) from error
                _logger.warning("Serving without the disk tier in %s: %s", folder, error)

    def as_list(self) -> list[PageTier]:
        """The tiers, fastest first."""
        return [tier for tier in (self._host, self._disk) if tier is not None]

    def stats(self) -> dict[str, dict[str, int]]:
        """By the name of each tier: its ``pages`` and their size in ``bytes``."""
        named = {"host": self._host, "disk": self._disk}
        return {
            name: {"pages": len(tier), "bytes": tier.num_bytes}
            for name, tier in named.items()
            if tier is not None
        }

    def save(self, pool: PagePool) -> None:
        """Keep what the pool holds for the next process, where there is a disk tier."""
        if self._disk is not None:
            pool.save_prefix_cache()

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            self._lock.close()


def _locked(path: Path) -> TextIOWrapper:
    """A file that no other process has; the system releases that of a process which dies.

    Raises:
        OSError: another process has it, with ``EAGAIN``, or it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    with suppress(ImportError):  # not there on Windows, where a folder is one process's by promise
        import fcntl  # noqa: PLC0415

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise BlockingIOError(errno.EAGAIN, "another process uses it") from error
    return file
