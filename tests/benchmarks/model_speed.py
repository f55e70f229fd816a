"""Tokens per second beside llama.cpp, on the same GGUF file, in interleaved rounds.

llama.cpp is a peer to measure against, not a dependency: give the folder of its
``llama-batched-bench`` with ``--llama``. Run this alone on the machine; the load it found is
printed with the table. Both sides decode the same number of streams from prompts of equal length.

``python tests/benchmarks/against_llama.py --llama ~/llama.cpp/bin --threads 2 --rounds 5``
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch

from astrai_engine.loading import load_model, resolve_source
from astrai_kernels import CpuBackend, set_num_threads
from astrai_kvcache import BindWorkspace, PagePool

STREAMS = (1, 8, 16, 32)
NUM_PROMPT = 128
NUM_NEW = 32
NUM_LONG = 512


class Runner:
    """Our model over a paged pool, step by step, as the engine drives it."""

    def __init__(self, path: str | None, activation_bits: int) -> None:
        loaded = load_model(
            resolve_source(path),
            device=torch.device("cpu"),
            dtype=torch.float32,
            precision="file",
            activation_bits=activation_bits,
        )
        config, self.model = loaded.config, loaded.model
        most = max(STREAMS)
        self.pool = PagePool(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            most,
            NUM_LONG + NUM_NEW,
            torch.device("cpu"),
            torch.float16,
            page_size=16,
            n_tokens=most * (NUM_PROMPT + NUM_NEW + 16),
            prefix_cache=False,
        )
        self.workspace = BindWorkspace(most, most * NUM_PROMPT, torch.device("cpu"))

    @torch.inference_mode()
    def step(self, tasks: dict[str, int], new: list[list[int]]) -> torch.Tensor:
        """Compute new tokens of each task, whose lengths are advanced; gives the next ones."""
        positions = []
        for (task, length), ids in zip(tasks.items(), new, strict=True):
            end = length + len(ids)
            reserve = self.pool.task_extend if length else self.pool.task_alloc
            assert reserve(task, end - 1 if length else ids)
            positions += range(length, end)
            tasks[task] = end
        q_lens = [len(ids) for ids in new]
        cache = self.pool.bind_tasks(list(tasks), self.workspace, q_lens=q_lens)
        rows = torch.tensor(q_lens).cumsum(0) - 1
        ids = torch.tensor([token for each in new for token in each])
        logits = self.model.forward(
            ids, torch.tensor(positions), cache, CpuBackend(strict=True), logit_rows=rows
        )
        return logits.argmax(-1)

    def decode(self, streams: int) -> float:
        """Generated tokens per second over all streams."""
        tasks = {str(stream): 0 for stream in range(streams)}
        chosen = self.step(tasks, [prompt(NUM_PROMPT, stream) for stream in range(streams)])
        start = time.perf_counter()
        for _ in range(NUM_NEW):
            chosen = self.step(tasks, chosen.unsqueeze(-1).tolist())
        elapsed = time.perf_counter() - start
        for task in tasks:
            self.pool.task_free(task)
        return streams * NUM_NEW / elapsed

    def prefill(self) -> float:
        """Prompt tokens per second."""
        start = time.perf_counter()
        self.step({"long": 0}, [prompt(NUM_LONG, 0)])
        elapsed = time.perf_counter() - start
        self.pool.task_free("long")
        return NUM_LONG / elapsed


def prompt(length: int, stream: int) -> list[int]:
    """Token ids that no two streams share."""
    return [(37 * i + stream + 5) % 40000 for i in range(length)]


def llama(folder: Path, model: str, threads: int, num_prompt: int, streams: str) -> list[dict]:
    """What llama-batched-bench measures, one entry for each number of streams."""
    command = [
        str(folder / "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "8192",
        "-b", "2048", "-ub", "512", "-npp", str(num_prompt), "-ntg", str(NUM_NEW), "-npl", streams,
        "--output-format", "jsonl",
    ]  # fmt: skip
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    environment.pop("OMP_NUM_THREADS", None)
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Run the rounds and print one line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama", type=Path, required=True, help="llama.cpp's bin folder")
    parser.add_argument("--model", help="a .gguf file (default: the embedded model)")
    parser.add_argument("--peer-model", help="llama.cpp's file, if another (default: the same)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--activation-bits", type=int, choices=(8, 16), default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    set_num_threads(arguments.threads)
    runner = Runner(arguments.model, arguments.activation_bits)
    peer = arguments.peer_model or resolve_source(arguments.model).location
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    runner.decode(1)
    print(f"load before: {os.getloadavg()}", flush=True)
    for _ in range(arguments.rounds):
        for entry in llama(
            arguments.llama, peer, arguments.threads, NUM_PROMPT, ",".join(map(str, STREAMS))
        ):
            theirs.setdefault(f"decode x {entry['pl']}", []).append(entry["speed_tg"])
        (entry,) = llama(arguments.llama, peer, arguments.threads, NUM_LONG, "1")
        theirs.setdefault(f"prefill {NUM_LONG}", []).append(entry["speed_pp"])
        for streams in STREAMS:
            ours.setdefault(f"decode x {streams}", []).append(runner.decode(streams))
        ours.setdefault(f"prefill {NUM_LONG}", []).append(runner.prefill())
    print(f"load after: {os.getloadavg()}; tokens per second, median (lowest to highest)")
    for name, rates in ours.items():
        both = [
            f"{statistics.median(each):7.0f} ({min(each):.0f} to {max(each):.0f})"
            for each in (rates, theirs[name])
        ]
        ratio = statistics.median(rates) / statistics.median(theirs[name])
        print(f"{name:14} ours {both[0]:24} llama.cpp {both[1]:24} {ratio:.2f}x")


if __name__ == "__main__":
    main()
