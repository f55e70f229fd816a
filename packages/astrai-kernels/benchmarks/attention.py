"""Time a step's attention: 30 layers of `TorchNativeBackend` against a plain loop over rows.

Run it alone on the machine: ``python benchmarks/attention.py --threads 2``.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

from astrai_kernels import TorchNativeBackend
from astrai_kernels.testing import Step, make_rotary, make_step

NUM_LAYERS = 30
WORKLOADS = {
    "decode  1 x  128": ([128], [1]),
    "decode  8 x  128": ([128] * 8, [1] * 8),
    "decode 32 x  128": ([128] * 32, [1] * 32),
    "decode 32 mixed ": (list(range(40, 40 + 32 * 25, 25)), [1] * 32),
    "decode  1 x 1024": ([1024], [1]),
    "decode  8 x 1024": ([1024] * 8, [1] * 8),
    "decode 32 x 1024": ([1024] * 32, [1] * 32),
    "prefill 1 x  128": ([128], [128]),
    "prefill 1 x  512": ([512], [512]),
    "prefill 1 x 2048": ([2048], [2048]),
    "chunk 256 @ 1024": ([1024] + [128] * 8, [256] + [1] * 8),
}


def backend_step(step: Step) -> None:
    """All layers, with a plan made in the first one."""
    backend, rotary = TorchNativeBackend(), make_rotary(step)
    for _ in range(NUM_LAYERS):
        step.attend(backend, rotary=rotary)


def loop_step(step: Step) -> None:
    """All layers by the obvious loop: gather each row, repeat its K/V, mask, attend."""
    rotary, cache = make_rotary(step), step.cache
    assert cache.qo_indptr is not None
    bounds = cache.qo_indptr.tolist()
    for _ in range(NUM_LAYERS):
        q, k = rotary.apply(step.q), rotary.apply(step.k)
        keys, values = cache.k_buffer[0], cache.v_buffer[0]
        keys[cache.out_cache_loc], values[cache.out_cache_loc] = k, step.v
        out = torch.empty_like(q)
        for row, length in enumerate(cache.seq_lens.tolist()):
            begin, end = bounds[row], bounds[row + 1]
            slots = cache.req_to_token[cache.req_pool_indices[row], :length].long()
            position = torch.arange(length)
            mask = position <= position[length - (end - begin) :, None]
            out[begin:end] = F.scaled_dot_product_attention(
                q[begin:end].transpose(0, 1),
                keys[slots].repeat_interleave(3, 1).transpose(0, 1),
                values[slots].repeat_interleave(3, 1).transpose(0, 1),
                attn_mask=mask,
            ).transpose(0, 1)


def median_ms(run: Callable[[], None], rounds: int) -> float:
    """Median wall time in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def time_workload(seq_lens: Sequence[int], q_lens: Sequence[int], rounds: int) -> list[float]:
    """Times of: the backend on consecutive slots, on shuffled ones, and the loop."""
    steps = [make_step(seq_lens, q_lens, shuffled=shuffled) for shuffled in (False, True)]
    # Without NaN in the buffers, whose arithmetic can be slow.
    steps = [
        replace(
            step,
            cache=replace(
                step.cache,
                k_buffer=step.cache.k_buffer.nan_to_num(),
                v_buffer=step.cache.v_buffer.nan_to_num(),
            ),
        )
        for step in steps
    ]
    runs = [lambda: backend_step(steps[0]), lambda: backend_step(steps[1])]
    runs.append(lambda: loop_step(steps[0]))
    for run in runs:
        run()
    return [median_ms(run, rounds) for run in runs]


def main() -> None:
    """Print one line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads; ms for {NUM_LAYERS} layers")
    print(f"{'workload':18}{'consecutive':>12}{'shuffled':>12}{'loop':>12}{'gain':>8}")
    with torch.inference_mode():
        for name, (seq_lens, q_lens) in WORKLOADS.items():
            runs, shuffled, loop = time_workload(seq_lens, q_lens, arguments.rounds)
            print(f"{name:18}{runs:12.2f}{shuffled:12.2f}{loop:12.2f}{loop / runs:7.1f}x")


if __name__ == "__main__":
    main()
