"""The server under load: its process, what it holds, and the small disk its cache writes to."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from wire import ask

import astrai_kernels

MIB = 2**20
SETTINGS = {
    # So small that all of it is soon written: from then on, growth is a leak.
    "ASTRAI_N_TOKENS": 2560,
    "ASTRAI_MAX_BATCH_SIZE": 24,
    "ASTRAI_MAX_QUEUE": 48,
    "ASTRAI_HOST_CACHE_BYTES": 32 * MIB,
    "ASTRAI_DISK_CACHE_BYTES": 64 * MIB,
    "ASTRAI_SHUTDOWN_TIMEOUT": 60,
}
DISK_BYTES = 80 * MIB


@dataclass(frozen=True)
class Holdings:
    """What a process has of the system's."""

    threads: int
    descriptors: int


class Server:
    """A process of ``astrai serve`` whose pages go to a disk of 80 MiB that only it sees.

    Args:
        folder: for its log and its caches.
    """

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.pages = folder / "cache" / "pages"
        self.pages.mkdir(parents=True)
        (folder / "cache" / "kernels").symlink_to(astrai_kernels.cache_dir() / "kernels")
        self._log_path = folder / "log.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ASTRAI_")}
        environment |= {name: str(value) for name, value in SETTINGS.items()}
        environment["ASTRAI_CACHE_DIR"] = str(folder / "cache")
        serve = [sys.executable, "-m", "astrai_api", "serve", "--port", str(self.port)]
        script = f"mount -t tmpfs -o size={DISK_BYTES} soak {shlex.quote(str(self.pages))} && "
        script += shlex.join(["exec", *serve, "--log-level", "warning"])
        own_mounts = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                own_mounts, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def warnings(self):
        """The lines of its log, which has warnings and errors only."""
        return self._log_path.read_text().splitlines()

    @property
    def resident_mib(self):
        """Its memory."""
        return int(self._status("VmRSS").split()[0]) / 1024

    @property
    def holdings(self):
        """Its threads and open files."""
        descriptors = len(list(self._proc("fd").iterdir()))
        return Holdings(int(self._status("Threads")), descriptors)

    @property
    def cpu_seconds(self):
        """Processor time it has used."""
        fields = self._proc("stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_ready(self):
        """Wait until it serves."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if asyncio.run(ask(self.port, "GET", "/health")).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        self.end()
        raise SystemExit(f"The server did not start:\n{self._log_path.read_text()}")

    async def stats(self):
        """The body of ``/stats``."""
        return json.loads((await ask(self.port, "GET", "/stats")).body)

    def fill_disk(self):
        """Let somebody else's file take all the room that is left on its disk."""
        path = self._proc("root") / str(self.pages).lstrip("/") / "of-somebody-else"
        with path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def terminate(self):
        """Ask it to stop."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self):
        """Its exit status; None if it does not end in a minute and a half."""
        try:
            return self._process.wait(90)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Make sure that it is gone."""
        self._process.kill()
        self._process.wait()

    def _proc(self, name):
        return Path(f"/proc/{self._process.pid}/{name}")

    def _status(self, name):
        for line in self._proc("status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        raise KeyError(name)
