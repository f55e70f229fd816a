"""Time 30 layers of native attention beside torch's, for a model of 9 heads over 3.

Run it alone on the machine: ``python benchmarks/cpu_attention.py --threads 2``.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch

from astrai_kernels import AttentionBackend, CpuBackend, TorchNativeBackend, set_num_threads
from astrai_kernels.testing import Step, make_rotary, make_step

NUM_LAYERS = 30
WORKLOADS = {
    "decode  1 x  128": ([128], [1]),
    "decode 16 x  128": ([128] * 16, [1] * 16),
    "decode 32 x  128": ([128] * 32, [1] * 32),
    "decode  1 x 2048": ([2048], [1]),
    "decode  8 x 2048": ([2048] * 8, [1] * 8),
    "prefill 1 x  512": ([512], [512]),
    "prefill 1 x 2048": ([2048], [2048]),
}


def make(name: str, kv_dtype: torch.dtype, *, shuffled: bool) -> Step:
    """A workload's step, without NaN in the buffers, whose arithmetic can be slow."""
    step = make_step(*WORKLOADS[name], kv_dtype=kv_dtype, shuffled=shuffled)
    keys, values = step.cache.k_buffer.nan_to_num(), step.cache.v_buffer.nan_to_num()
    return replace(step, cache=replace(step.cache, k_buffer=keys, v_buffer=values))


def median_ms(step: Step, backend: AttentionBackend, rounds: int) -> float:
    """Median time of all layers, with a plan made in the first one."""
    times = []
    for _ in range(rounds + 1):
        fresh = replace(step, cache=replace(step.cache))
        rotary = make_rotary(step)
        start = time.perf_counter()
        for _ in range(NUM_LAYERS):
            fresh.attend(backend, rotary=rotary)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    """Print one line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_num_threads(arguments.threads)
    half = torch.float16
    print(f"{arguments.threads} threads; ms for {NUM_LAYERS} layers")
    print(f"{'':18}{'torch':>10}{'native':>10}{'float16':>10}{'shuffled':>10}")
    with torch.inference_mode():
        for name in WORKLOADS:
            plain = make(name, torch.float32, shuffled=False)
            results = (
                median_ms(plain, TorchNativeBackend(), arguments.rounds),
                median_ms(plain, CpuBackend(), arguments.rounds),
                median_ms(make(name, half, shuffled=False), CpuBackend(), arguments.rounds),
                median_ms(make(name, half, shuffled=True), CpuBackend(), arguments.rounds),
            )
            print(f"{name:18}" + "".join(f"{result:10.2f}" for result in results), flush=True)


if __name__ == "__main__":
    main()
