"""How many threads the kernels use by default."""

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Cores this process may use: hardware threads of one core count once, quotas count too."""
    if hasattr(os, "sched_getaffinity"):
        usable = os.sched_getaffinity(0)
    else:
        usable = set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in usable}
    return max(1, min(len(cores), _quota() or len(cores)))


def _siblings(cpu: int) -> str:
    """What names the core of a hardware thread; its own number where the system doesn't say."""
    try:
        path = _TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _quota() -> int | None:
    """Whole cores a container's limit allows; None without one."""
    try:
        limit, period = _CGROUP_LIMIT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(1, int(limit) // int(period))
