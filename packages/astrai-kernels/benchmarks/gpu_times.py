"""Times of the CUDA kernels, for gpu_check.py.

They are measured inside CUDA graphs, so that no time of the host is among them, and printed beside
ceilings measured here, a copy and a matrix product, and beside FlashInfer or torch.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from astrai_kernels import ops
from astrai_kernels.testing import Step, make_rotary, make_step

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16


def capture(work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Call once, then record a call as a graph; gives the graph, and what it will write."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


def microseconds(work: Callable[[], torch.Tensor], calls: int = 20) -> float:
    """Of one call among several in a graph, the median of as many replays as fit in 0.3 s."""

    def repeated() -> torch.Tensor:
        return [work() for _ in range(calls)][-1]

    graph, _ = capture(repeated)
    times: list[float] = []
    deadline = time.perf_counter() + 0.3
    while len(times) < 5 or time.perf_counter() < deadline:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return 1e3 * statistics.median(times) / calls


def copy_ceiling(size: int = 1 << 30) -> float:
    """TB/s, read and written."""
    source, target = (torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    return 2 * size / microseconds(lambda: target.copy_(source), 4) / 1e6


def product_ceiling(size: int = 8192) -> float:
    """TFLOP/s of a bfloat16 matrix product on random numbers."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=BF16) for _ in range(2))
    return 2 * size**3 / microseconds(lambda: a @ b, 4) / 1e6


def row(name: str, time_us: float, reached: str, target: str = "", peer: str = "") -> None:
    print(f"{name:34}{time_us:10.1f} us  {reached:30}{target:18}{peer}")


def big_step(batch: int, length: int, heads: tuple[int, int], head_dim: int, q_len: int) -> Step:
    """Rows of equal length, whose slots are scattered over one layer."""
    step = make_step(
        [1] * batch, [1] * batch, heads=heads, head_dim=head_dim, dtype=BF16, device=DEVICE
    )
    slots, tokens = batch * length, batch * q_len
    shape = (1, slots, heads[1], head_dim)
    table = torch.randperm(slots, device=DEVICE).to(torch.int32).view(batch, length)
    buffers = [torch.randn(shape, device=DEVICE, dtype=BF16) for _ in range(2)]
    cache = replace(
        step.cache,
        k_buffer=buffers[0],
        v_buffer=buffers[1],
        req_to_token=table,
        req_pool_indices=torch.arange(batch, device=DEVICE),
        seq_lens=torch.full((batch,), length, device=DEVICE),
        out_cache_loc=table[:, length - q_len :].long().contiguous(),
        max_len=length,
        qo_indptr=None,
    )
    q, k = (torch.randn(tokens, n, head_dim, device=DEVICE, dtype=BF16) for n in heads)
    positions = torch.arange(length - q_len, length, device=DEVICE).repeat(batch)
    return Step(q, k, k.clone(), cache, positions)


def pools(step: Step) -> tuple[torch.Tensor, ...]:
    cache = step.cache
    rows = cache.req_to_token, cache.req_pool_indices, cache.seq_lens
    return step.q, cache.k_buffer[0], cache.v_buffer[0], *rows


def decode_times(copy: float) -> None:
    shapes = [
        (1, 1024, 8, 4, 128),
        (1, 16384, 8, 4, 128),
        (32, 4096, 8, 4, 128),
        (64, 8192, 8, 4, 128),
    ]
    for batch, length, kv_heads, group, head_dim in [
        *shapes,
        (64, 4096, 3, 3, 64),
        (32, 4096, 8, 8, 128),
    ]:
        step = big_step(batch, length, (kv_heads * group, kv_heads), head_dim, 1)
        counters = torch.zeros(batch * kv_heads * 4, dtype=torch.int32, device=DEVICE)
        arguments, options = pools(step), {"max_len": length, "counters": counters}
        time_us = microseconds(lambda a=arguments, o=options: ops.attn_paged_decode(*a, **o))
        size = 2 * step.cache.k_buffer.nbytes
        target = "target 85 %" if size >= 1 << 28 else "target 9 us" if length == 1024 else ""
        speed = size / time_us / 1e6
        name = f"decode {batch} x {length}, {kv_heads}x{group} of {head_dim}"
        reached = f"{speed:5.2f} TB/s, {100 * speed / copy:3.0f} % of copy"
        row(name, time_us, reached, target, decode_peer(step, batch, length))


def decode_peer(step: Step, batch: int, length: int) -> str:
    """FlashInfer where it is installed, else torch over K/V gathered beforehand."""
    q, k, v, table, *_ = pools(step)
    try:
        import flashinfer  # noqa: PLC0415 - few machines have it
    except ImportError:
        shape = (batch, length, *k.shape[1:])
        k, v = (x[table.flatten().long()].view(shape).transpose(1, 2) for x in (k, v))
        time_us = microseconds(partial(attend, q.unsqueeze(2), k, v, enable_gqa=True), 4)
        return f"torch, gathered before: {time_us:.1f} us"
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE), "NHD"
    )
    bounds = torch.arange(batch + 1, dtype=torch.int32, device=DEVICE) * length
    last = torch.ones(batch, dtype=torch.int32, device=DEVICE)
    wrapper.plan(
        bounds, table.flatten(), last, q.shape[1], k.shape[1], q.shape[2], 1, q_data_type=BF16
    )
    pages = k.unsqueeze(1), v.unsqueeze(1)
    return f"FlashInfer: {microseconds(lambda: wrapper.run(q, pages)):.1f} us"


def prefill_times(product: float) -> None:
    for batch, length, heads, head_dim in [
        (1, 4096, (32, 8), 128),
        (4, 4096, (32, 8), 128),
        (1, 16384, (32, 8), 128),
        (4, 4096, (9, 3), 64),
    ]:
        step = big_step(batch, length, heads, head_dim, length)
        arguments = pools(step)
        time_us = microseconds(
            lambda a=arguments, n=length: ops.attn_paged_prefill(*a, None, max_len=n), 4
        )
        flops = 4 * batch * heads[0] * head_dim * length * (length + 1) / 2
        speed = flops / time_us / 1e6
        dense = [
            x.view(batch, length, -1, head_dim).transpose(1, 2) for x in (step.q, step.k, step.v)
        ]
        peer = microseconds(partial(attend, *dense, is_causal=True, enable_gqa=True), 4)
        reached = f"{speed:5.0f} TFLOP/s, {100 * speed / product:3.0f} % of GEMM"
        target = "target 300" if head_dim == 128 else ""
        name = f"prefill {batch} x {length}, {heads} of {head_dim}"
        row(name, time_us, reached, target, f"torch, not paged: {peer:.1f} us")


def rotary_times(copy: float) -> None:
    step = big_step(8, 1024, (32, 8), 128, 1024)
    angles, cache = make_rotary(step).freqs_cis, step.cache
    stores = cache.out_cache_loc.flatten(), cache.k_buffer[0], cache.v_buffer[0]
    store = partial(ops.rotary_emb_store, step.q, step.k, step.v, angles, *stores)
    time_us = microseconds(partial(store, interleaved=False))
    speed = (2 * (step.q.nbytes + step.k.nbytes + step.v.nbytes) + angles.nbytes) / time_us / 1e6
    reached = f"{speed:5.2f} TB/s, {100 * speed / copy:3.0f} % of copy"
    row("rotary and store, 8192 tokens", time_us, reached, "target 80 %")


def sampling_times() -> None:
    logits = torch.randn(64, 128256, device=DEVICE)
    for name, sampled in {
        "greedy": {"temperature": 0.0},
        "top-k 50": {"top_k": 50},
        "top-p": {"top_p": 0.9},
    }.items():
        packed = ops.pack_rows([ops.SampleRow(**sampled)] * 64).to(DEVICE)
        time_us = microseconds(lambda p=packed: ops.sample_rows(logits, p))
        row(f"sampling 64 x 128256, {name}", time_us, f"{logits.nbytes / time_us / 1e6:5.2f} TB/s")


def print_times() -> None:
    """Print a table of times, beside the ceilings that bound them."""
    copy, product = copy_ceiling(), product_ceiling()
    print(f"copy {copy:.2f} TB/s, GEMM {product:.0f} TFLOP/s")
    decode_times(copy)
    prefill_times(product)
    rotary_times(copy)
    sampling_times()
