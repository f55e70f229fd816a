"""Rate of the native linear layers, in billions of multiplications a second.

Run it alone on the machine: ``python benchmarks/cpu_linear.py --threads 2``.
"""

import argparse
import statistics
import time

import torch

from astrai_kernels import ops, set_num_threads
from astrai_kernels.cpu.pack import pack_blocks, pack_dense
from astrai_kernels.cpu.quantize import quantize_blocks
from astrai_kernels.cpu.weights import BlockFormat, PackedWeight

SHAPES = {"qkv": (960, 576), "gate_up": (3072, 576), "down": (576, 1536)}
ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
NUM_WEIGHTS = 30


def variants(out_features: int, in_features: int) -> dict[str, list[ops.Weight]]:
    """As many weights of each kind as keep a model's from staying in the cache."""
    made: dict[str, list[ops.Weight]] = {}
    for _ in range(NUM_WEIGHTS):
        values = torch.randn(out_features, in_features)
        four, eight = BlockFormat.Q4_1, BlockFormat.Q8_0
        blocks = quantize_blocks(values, four)
        packed: dict[str, PackedWeight | ops.LinearWeight] = {
            "q4, int16": pack_blocks(blocks, four),
            "q4, int8": pack_blocks(blocks, four, activation_bits=8),
            "q8, int16": pack_blocks(quantize_blocks(values, eight), eight),
            "float32": pack_dense(values),
            "torch": ops.LinearWeight(values),
        }
        for name, weight in packed.items():
            made.setdefault(name, []).append(weight)
    return made


def rate(weights: list[ops.Weight], rows: int, rounds: int) -> float:
    """Median rate over all weights."""
    x = torch.randn(rows, weights[0].in_features)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for weight in weights:
            ops.linear(x, weight)
        times.append(time.perf_counter() - start)
    products = rows * sum(weight.in_features * weight.out_features for weight in weights)
    return products / statistics.median(times[1:]) / 1e9


def main() -> None:
    """Print a table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_num_threads(arguments.threads)
    with torch.inference_mode():
        for name, shape in SHAPES.items():
            print(f"{name} {shape[0]} x {shape[1]}, {arguments.threads} threads")
            print(f"{'rows':12}" + "".join(f"{rows:8}" for rows in ROWS))
            for kind, weights in variants(*shape).items():
                rates = (rate(weights, rows, arguments.rounds) for rows in ROWS)
                print(f"{kind:12}" + "".join(f"{value:8.1f}" for value in rates), flush=True)


if __name__ == "__main__":
    main()
