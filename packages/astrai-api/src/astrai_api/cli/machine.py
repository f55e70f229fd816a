"""What this machine is: the facts that decide how fast a model runs on it."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

Fact = tuple[str, str]
"""What it is, and its value."""

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")


def machine_facts() -> list[Fact]:
    """The machine in words, as far as the operating system tells."""
    facts = [
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("astrai", f"astrai-api {version('astrai-api')}, astrai-engine {version('astrai-engine')}"),
        ("processor", _processor()),
        ("cores", f"{usable_cores()} usable of {os.cpu_count()}"),
    ]
    memory = _memory()
    return [*facts, ("memory", memory)] if memory else facts


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _processor() -> str:
    info = _read("/proc/cpuinfo")
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    known = [flag for flag in _FLAGS if flag in flags]
    return f"{name} ({', '.join(known)})" if known else name


def _memory() -> str | None:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    if not {"MemTotal", "MemAvailable"} <= fields.keys():
        return None
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return f"{in_units(1024 * available)} available of {in_units(1024 * total)}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def in_units(num_bytes: int) -> str:
    """A number of bytes for people: ``1.5 GiB``."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
