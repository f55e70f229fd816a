"""Tokens per second of the model alone, beside llama.cpp and transformers, in interleaved rounds.

The peers are not dependencies: give the folder of ``llama-batched-bench`` with ``--llama`` and
files for it with ``--peer NAME=FILE``; ``--transformers`` needs that package. What is not given is
left out, and said so. Run this alone on the machine. Work is named ``decode N`` (streams, from
128 tokens each), ``prefill N`` and ``context N`` (one stream after N tokens).

``python tests/benchmarks/model_speed.py --llama ~/llama.cpp/bin --peer Q4_0=model-q4_0.gguf``
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from records import Record, append
from runner import Runner, prompt
from server import peer_environment

from astrai_engine.loading import resolve_source
from astrai_kernels import set_num_threads

WORK = (
    "decode 1", "decode 8", "decode 16", "decode 32",
    "prefill 512", "prefill 4096", "context 2048",
)  # fmt: skip
NUM_PROMPT = 128
NUM_NEW = 32

Measure = Callable[[str, int], float]


def ours(runner: Runner) -> Measure:
    """Measures the runner."""

    def measure(kind: str, size: int) -> float:
        if kind == "prefill":
            return runner.prefill_rate(size)
        if kind == "context":
            return runner.decode_rate(1, size, NUM_NEW)
        return runner.decode_rate(size, NUM_PROMPT, NUM_NEW)

    return measure


def llama(folder: Path, model: str, threads: int) -> Measure:
    """Measures llama.cpp by its own benchmark."""

    def measure(kind: str, size: int) -> float:
        num_prompt, streams = (NUM_PROMPT, size) if kind == "decode" else (size, 1)
        command = [
            str(folder / "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "8192",
            "-b", "2048", "-ub", "512", "-npp", str(num_prompt), "-npl", str(streams),
            "-ntg", "1" if kind == "prefill" else str(NUM_NEW), "--output-format", "jsonl",
        ]  # fmt: skip
        environment = peer_environment(folder)
        output = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        entry = next(json.loads(line) for line in output.stdout.splitlines() if line[:1] == "{")
        return float(entry["speed_pp" if kind == "prefill" else "speed_tg"])

    return measure


def transformers(path: str, threads: int) -> Measure:
    """Measures transformers in float32, on the same weights."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - only when asked for

    folder, name = Path(path).parent, Path(path).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()

    @torch.inference_mode()
    def measure(kind: str, size: int) -> float:
        torch.set_num_threads(threads)
        num_prompt, streams = (NUM_PROMPT, size) if kind == "decode" else (size, 1)
        ids = torch.tensor([prompt(num_prompt, stream) for stream in range(streams)])
        start = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        if kind != "prefill":
            start = time.perf_counter()
            for _ in range(NUM_NEW):
                chosen = out.logits[:, -1:].argmax(-1)
                out = model(chosen, past_key_values=out.past_key_values, use_cache=True)
        elapsed = time.perf_counter() - start
        torch.set_num_threads(1)
        return (num_prompt if kind == "prefill" else streams * NUM_NEW) / elapsed

    return measure


def systems(arguments: argparse.Namespace) -> Iterator[tuple[str, Measure]]:
    """Everything there is to measure."""
    model, threads = resolve_source(arguments.model).location, arguments.threads
    yield "astrai", ours(Runner(arguments.model))
    if arguments.int8:
        yield "astrai int8", ours(Runner(arguments.model, activation_bits=8))
    if arguments.llama is None:
        print("llama.cpp is left out: give its bin folder with --llama")
    else:
        for name, file in (peer.split("=", 1) for peer in [f"Q4_1={model}", *arguments.peer]):
            yield f"llama.cpp {name}", llama(arguments.llama, file, threads)
    if arguments.transformers:
        yield "transformers fp32", transformers(str(model), threads)
    else:
        print("transformers is left out: add --transformers")


def main() -> None:
    """Run the rounds, and add what they give to the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama", type=Path, help="llama.cpp's bin folder")
    parser.add_argument("--model", help="a .gguf file (default: the embedded model)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--int8", action="store_true", help="measure int8 activations too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", action="append", help=f"some of: {', '.join(WORK)}")
    parser.add_argument("--results", type=Path, default=Path("performance.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    set_num_threads(arguments.threads)
    measured = dict(systems(arguments))
    for measure in measured.values():
        measure("decode", 1)
    for _ in range(arguments.rounds):
        for work in arguments.work or WORK:
            kind, size = work.split()
            append(
                arguments.results,
                [
                    Record(system, work, measure(kind, int(size)), "tok/s")
                    for system, measure in measured.items()
                ],
            )


if __name__ == "__main__":
    main()
