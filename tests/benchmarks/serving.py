"""Start-up, memory, and what a cached prefix saves, of our own server.

Start-up is that of every start but the first, which compiles kernels and Python's bytecode.

``python tests/benchmarks/serving.py --results performance.jsonl``
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from http_load import load
from records import Record, append
from server import astrai, running

PORT = 8472
IMPORT = """
import time
start = time.perf_counter()
import torch
took = time.perf_counter() - start
fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(took, int(fields["RssAnon"].split()[0]) * 1024)
"""


# Python keeps the bytecode it compiles, unless it is told not to, as in many containers.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def import_torch() -> tuple[float, int]:
    """Seconds that the import takes, and the memory it leaves behind."""
    command = [sys.executable, "-c", IMPORT]
    output = subprocess.check_output(command, env=ENVIRONMENT, text=True).split()
    return float(output[0]), int(output[1])


def main() -> None:
    """Run the rounds, and add what they give to the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("performance.jsonl"))
    arguments = parser.parse_args()
    environment = ENVIRONMENT | {"ASTRAI_N_TOKENS": "8192"}
    with running(astrai(PORT), PORT, environment):
        pass
    for number in range(arguments.rounds):
        seconds, imported = import_torch()
        with running(astrai(PORT), PORT, environment) as server:
            prefix = f"Chapter {number}. " + "Then the old clock struck again. " * 285
            cold = server.ask(prefix + f"It was {time.time_ns() % 100}", 1)
            warm = server.ask(prefix + "It was late", 1)
            if warm.cached_tokens < 1900:
                raise RuntimeError(f"Only {warm.cached_tokens} tokens of the prefix were cached.")
            load(server, 16, 1000 * number)
            used = server.anonymous_bytes()
        append(
            arguments.results,
            [
                Record("astrai", "ready beyond torch", server.ready - seconds, "s"),
                Record("torch", "import", seconds, "s"),
                Record("astrai", "first token, cold", cold.first * 1e3, "ms"),
                Record("astrai", "first token, cached", warm.first * 1e3, "ms"),
                Record("astrai", "memory beyond torch", (used - imported) / 1e6, "MB"),
            ],
        )


if __name__ == "__main__":
    main()
