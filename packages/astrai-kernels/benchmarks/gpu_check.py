"""Check the CUDA kernels on this machine's GPU against float64, then time them.

``python gpu_check.py`` needs Python 3.11 and torch 2.11 or later, with its CUDA wheels, and
nothing else; it takes less than four minutes. ``--no-benchmarks`` leaves the times out. The exit
status is 0 when every check passes, 1 when one fails, 2 without a GPU.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from gpu_times import capture, print_times

from astrai_kernels import CudaBackend, TorchNativeBackend, ops
from astrai_kernels.cuda.attention import HEAD_DIMS
from astrai_kernels.testing import Step, check_attend, make_rotary, make_step

DEVICE = torch.device("cuda")
BF16, F16 = torch.bfloat16, torch.float16
Check = Callable[[], None]


def gpu_step(lengths: list[int], counts: list[int], **options: object) -> Step:
    return make_step(
        lengths, counts, **{"dtype": BF16, "shuffled": True, "device": DEVICE} | options
    )


def decode_step(lengths: list[int], **options: object) -> Step:
    """As decode steps are bound: without ``qo_indptr``."""
    step = gpu_step(lengths, [1] * len(lengths), **options)
    loc = step.cache.out_cache_loc.view(-1, 1)
    return replace(step, cache=replace(step.cache, qo_indptr=None, out_cache_loc=loc))


def served(step: Step, **options: object) -> Check:
    """The kernels themselves serve the step, as the reference does."""
    return lambda: check_attend(CudaBackend(strict=True), step, **options)


def attention_checks() -> Iterator[tuple[str, Check]]:
    shapes = [
        (BF16, head_dim, heads) for head_dim in HEAD_DIMS for heads in [(9, 3), (2, 2), (16, 2)]
    ]
    for dtype, head_dim, heads in [*shapes, (F16, 128, (8, 2)), (F16, 64, (20, 1))]:
        options = {"dtype": dtype, "head_dim": head_dim, "heads": heads}
        name = f"{str(dtype)[6:]} head_dim {head_dim} heads {heads}"
        yield f"decode {name}", served(decode_step([1, 0, 70, 2000], **options))
        yield f"mixed {name}", served(gpu_step([300, 40, 0, 9, 700], [200, 1, 2, 9, 1], **options))
    for window in (1, 64, 1000):
        step = gpu_step([1500, 70, 3, 300], [1, 1, 1, 140])
        yield f"window {window}", served(step, window=window)
    for interleaved in (False, True):
        step = gpu_step([12, 90, 300], [1, 40, 1])
        rotary = make_rotary(step, interleaved=interleaved)
        yield f"rotary interleaved={interleaved}", served(step, rotary=rotary, scale=0.3)


def check_views() -> None:
    step = gpu_step([12, 9, 600], [1, 4, 1])
    fused = torch.cat((step.q, step.k, step.v), 1)
    views = replace(step, q=fused[:, :9], k=fused[:, 9:12], v=fused[:, 12:])
    check_attend(CudaBackend(strict=True), views, rotary=make_rotary(step))


def check_offsets_beyond_32_bits() -> None:
    step = decode_step([300, 9], heads=(4, 2))
    cache, first = step.cache, 2**31 // (4 * 64)
    pool = torch.zeros(1, first + cache.k_buffer.shape[1], 4, 64, dtype=BF16, device=DEVICE)
    pool[0, first:, :2], pool[0, first:, 2:] = cache.k_buffer[0], cache.v_buffer[0]
    far = replace(
        cache,
        k_buffer=pool[:, :, :2],
        v_buffer=pool[:, :, 2:],
        req_to_token=cache.req_to_token + first,
        out_cache_loc=cache.out_cache_loc + first,
    )
    near = step.attend(CudaBackend(strict=True))
    assert torch.equal(replace(step, cache=far).attend(CudaBackend(strict=True)), near)


def check_no_synchronisation() -> None:
    backends = CudaBackend(strict=True), TorchNativeBackend()
    step = gpu_step([300, 40, 9], [200, 1, 9])
    rotary = make_rotary(step)
    for backend in backends:
        step.attend(backend, rotary=rotary)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for backend in backends:
            again = replace(step, cache=replace(step.cache))
            again.attend(backend, rotary=rotary)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_graph() -> None:
    """A graph of four rows, recorded on one step, serves other lengths, slots and a padded row."""
    backend = CudaBackend(strict=True)
    step = decode_step([1500, 900, 400, 700])
    rotary = make_rotary(step)
    graph, out = capture(lambda: step.attend(backend, rotary=rotary))
    cache = step.cache
    cache.seq_lens.copy_(torch.tensor([17, 0, 399, 650]))
    cache.out_cache_loc[1] = -1
    step.q.normal_()
    before = cache.k_buffer.clone()
    graph.replay()
    expected = replace(step, cache=replace(cache)).attend(CudaBackend(strict=True), rotary=rotary)
    assert torch.equal(out, expected)
    assert not out[1].any()
    slot = cache.req_to_token[cache.req_pool_indices[1], 899]
    assert torch.equal(cache.k_buffer[0, slot], before[0, slot])


def check_sampling() -> None:
    logits = 3 * torch.randn(64, 128256)
    rows = [
        ops.SampleRow(temperature=t, top_k=k, top_p=p, min_p=m, seed=seed, position=7)
        for seed in range(2)
        for t in (0.0, 0.7, 1.5)
        for k in (0, 40)
        for p in (1.0, 0.9)
        for m in (0.0, 0.1)
    ]
    packed, logits = ops.pack_rows(rows), logits[: len(rows)]
    logits[3, 5], logits[4] = float("nan"), -float("inf")
    expected = ops.sample_rows(logits, packed)
    assert torch.equal(ops.sample_rows(logits.to(DEVICE), packed.to(DEVICE)).cpu(), expected)


def run_checks() -> int:
    checks = [
        *attention_checks(),
        ("views of a fused projection", check_views),
        ("offsets beyond 32 bits", check_offsets_beyond_32_bits),
        ("no synchronisation", check_no_synchronisation),
        ("graph replay", check_graph),
        ("sampling equals torch", check_sampling),
    ]
    failed = 0
    for name, check in checks:
        try:
            check()
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    print(f"{len(checks) - failed} of {len(checks)} checks pass")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-benchmarks", action="store_true", help="only check")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is nothing to check: torch finds no NVIDIA GPU.")
        return 2
    started = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    torch.manual_seed(0)
    failed = run_checks()
    if not options.no_benchmarks:
        print_times()
    print(f"{time.perf_counter() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
