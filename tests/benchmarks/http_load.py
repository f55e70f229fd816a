"""Many clients at once over HTTP: output tokens per second, and how long each waits for its own.

Our server and ``llama-server`` answer the same prompts in alternating rounds; each runs alone.
``python tests/benchmarks/http_load.py --llama ~/llama.cpp/bin --peer Q4_0=model-q4_0.gguf``
"""

import argparse
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from records import Record, append
from server import Answer, Server, astrai, peer_environment, running

from astrai_engine.loading import resolve_source

PORT = 8471
NUM_NEW = 128
PERCENTILES = (50, 90, 99)
WORDS = "the of and to in is that for it as was with be by on not he his but at are this"


def make_prompt(seed: int) -> str:
    """About 128 tokens that nobody else sends."""
    chosen = random.Random(seed).choices(WORDS.split(), k=122)
    return f"Story {seed}: " + " ".join(chosen)


def load(server: Server, clients: int, seed: int) -> tuple[float, list[Answer]]:
    """Let all clients ask at once; gives output tokens per second and the answers."""
    with ThreadPoolExecutor(clients) as pool:
        start = time.perf_counter()
        prompts = [make_prompt(seed + client) for client in range(clients)]
        answers = list(pool.map(lambda prompt: server.ask(prompt, NUM_NEW), prompts))
        return clients * NUM_NEW / (time.perf_counter() - start), answers


def percentiles(system: str, work: str, values: list[float], unit: str) -> list[Record]:
    """What half, nine in ten, and 99 of 100 clients wait at most."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return [Record(system, f"{work} p{number}", cuts[number - 1], unit) for number in PERCENTILES]


def llama_server(folder: Path, model: str, clients: int, threads: int) -> list[str]:
    """The command of llama.cpp's server, with a slot for each client."""
    return [
        str(folder / "llama-server"), "-m", model, "-np", str(clients), "-t", str(threads),
        "-c", str(512 * clients), "--port", str(PORT), "--no-webui",
    ]  # fmt: skip


def main() -> None:
    """Run the rounds, and add what they give to the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama", type=Path, help="llama.cpp's bin folder")
    parser.add_argument("--model", help="a .gguf file (default: the embedded model)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("performance.jsonl"))
    arguments = parser.parse_args()
    model = resolve_source(arguments.model).location
    own = {"ASTRAI_MODEL": str(model)} if arguments.model else {}
    commands = {"astrai": (astrai(PORT), os.environ | own)}
    if arguments.llama is None:
        print("llama-server is left out: give its folder with --llama")
    else:
        for name, file in (peer.split("=", 1) for peer in [f"Q4_1={model}", *arguments.peer]):
            command = llama_server(arguments.llama, file, arguments.clients, arguments.threads)
            commands[f"llama.cpp {name}"] = (command, peer_environment(arguments.llama))
    for number in range(arguments.rounds):
        for system, (command, environment) in commands.items():
            with running(command, PORT, environment) as server:
                server.ask("warm up", 8)
                rate, answers = load(server, arguments.clients, 1000 * number)
            work = f"http {arguments.clients}"
            firsts = [answer.first for answer in answers]
            gaps = [gap * 1e3 for answer in answers for gap in answer.gaps]
            found = [
                Record(system, work, rate, "tok/s"),
                *percentiles(system, f"{work} first token", firsts, "s"),
                *percentiles(system, f"{work} gap", gaps, "ms"),
            ]
            append(arguments.results, found)


if __name__ == "__main__":
    main()
