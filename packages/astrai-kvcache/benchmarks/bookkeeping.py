"""Time and memory of everything that is not K/V, against another pool of the same interface.

Each figure is the best of some rounds, in CPU time of this process, with the two pools taking
turns; run ``python benchmarks/bookkeeping.py [--peer FILE]``, where the file defines the peer's
``PagePool``. On a busy machine the ratios hold better than the times.
"""

import argparse
import gc
import importlib.util
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from astrai_kvcache import BindWorkspace, PagePool, PrefixCache

PAGE_SIZE = 16
NUM_TASKS = 32
NUM_TOKENS = 4_096
NUM_EXTENDED = 256
CPU = torch.device("cpu")


def small_pool(
    cls: type[Any], n_tokens: int, max_batch_size: int = NUM_TASKS, max_seq_len: int = 8_192
) -> Any:
    """A pool whose K/V are as small as they can be."""
    return cls(1, 1, 1, max_batch_size, max_seq_len, CPU, torch.float16, PAGE_SIZE, n_tokens)


def workspace_for(pool: Any, batch: int) -> BindWorkspace:
    """Buffers for decode; the seed's pool wants its write slots as a column."""
    workspace = BindWorkspace(batch, batch, CPU)
    if not isinstance(pool, PagePool):
        workspace.out_cache_loc = workspace.out_cache_loc.view(-1, 1)
    return workspace


def best(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least CPU seconds that each run reports, taking turns."""
    times = {name: float("inf") for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            times[name] = min(times[name], run())
    return times


def life_of_tasks(pool: Any, num_tasks: int, num_tokens: int, num_extended: int) -> float:
    """CPU seconds to add, extend and free tasks of different prompts, with the table written."""
    prompts = [list(range(i, i + num_tokens)) for i in range(num_tasks)]
    names = [f"task-{i}" for i in range(num_tasks)]
    workspace = workspace_for(pool, num_tasks)
    start = time.process_time()
    for name, prompt in zip(names, prompts, strict=True):
        assert pool.task_alloc(name, prompt)
    for pos in range(num_tokens, num_tokens + num_extended):
        for name in names:
            assert pool.task_extend(name, pos)
    pool.bind_tasks(names, workspace)
    for name in names:
        pool.task_free(name)
    return time.process_time() - start


def compare_life(peer: type[Any] | None, rounds: int) -> None:
    """32 tasks of 4,096 tokens in a pool of 1,048,576 slots; at least 20 times the peer."""
    pools = {"ours": small_pool(PagePool, 2**20)}
    if peer is not None:
        pools["peer"] = small_pool(peer, 2**20)
    runs = {
        name: lambda pool=pool: life_of_tasks(pool, NUM_TASKS, NUM_TOKENS, NUM_EXTENDED)
        for name, pool in pools.items()
    }
    times = best(runs, rounds)
    ratio = f"{times['peer'] / times['ours']:.0f} times (target 20)" if "peer" in times else ""
    shown = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in times.items())
    print(f"alloc, extend, free of {NUM_TASKS} tasks: {shown} {ratio}")


def compare_sizes(rounds: int) -> None:
    """One task's life in pools of all sizes; flat within a factor of 2."""
    pools = {f"{2**i:,}": small_pool(PagePool, 2**i) for i in range(10, 21, 2)}
    runs = {
        name: lambda pool=pool: life_of_tasks(pool, 1, 512, NUM_EXTENDED)
        for name, pool in pools.items()
    }
    times = best(runs, 10 * rounds)
    for name, seconds in times.items():
        print(f"alloc 512, extend {NUM_EXTENDED}, free in {name} slots: {seconds * 1e6:.0f} us")
    print(f"largest / smallest: {max(times.values()) / min(times.values()):.2f} (target 2)")


def time_prefix(peer: type[Any] | None, rounds: int) -> None:
    """Lookup and record of an 8,192-token prompt; below 3 ms."""
    prompt = list(range(8_192))

    def run(cls: type[Any]) -> float:
        pool = small_pool(cls, 2**14)
        assert pool.task_alloc("a", prompt)
        start = time.process_time()
        pool.task_record_hashes("a", prompt)
        recorded = time.process_time()
        pool.task_free("a")
        again = time.process_time()
        assert pool.task_alloc("b", prompt)
        assert pool.task_cached("b") >= 8_176
        return recorded - start + time.process_time() - again

    def tree_alone() -> float:
        cache = PrefixCache(PAGE_SIZE)
        start = time.process_time()
        parent = None
        for page in range(512):
            tokens = prompt[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
            parent = cache.insert(parent, tokens, page)
        assert len(cache.lookup(prompt)) == 512
        return time.process_time() - start

    runs = {"ours": lambda: run(PagePool), "the tree alone": tree_alone}
    if peer is not None:
        runs["peer"] = lambda: run(peer)
    for name, seconds in best(runs, 5 * rounds).items():
        print(f"record, and lookup with alloc, of 8,192 tokens: {name} {seconds * 1e3:.2f} ms")


def time_bind(peer: type[Any] | None, rounds: int) -> None:
    """Steady decode of 256 tasks, a page boundary in some of them each step; below 150 us."""
    names = [f"task-{i}" for i in range(256)]

    def steps(cls: type[Any], arguments: dict[str, Any]) -> float:
        pool = small_pool(cls, 2**17, 256, 1_024)
        workspace = workspace_for(pool, 256)
        for i, name in enumerate(names):
            assert pool.task_alloc(name, list(range(i, i + 100 + i % PAGE_SIZE)))
        spent = 0.0
        for step in range(200):
            for i, name in enumerate(names):
                assert pool.task_extend(name, 100 + i % PAGE_SIZE + step)
            start = time.process_time()
            pool.bind_tasks(names, workspace, **arguments)
            spent += time.process_time() - start if step else 0
        return spent / 199

    runs = {
        "ours, the seed's shapes": lambda: steps(PagePool, {}),
        "ours, packed": lambda: steps(PagePool, {"q_lens": [1] * 256}),
    }
    if peer is not None:
        runs["peer"] = lambda: steps(peer, {})
    for name, seconds in best(runs, 2 * rounds).items():
        print(f"bind_tasks of 256 tasks, mean of 200 steps: {name} {seconds * 1e6:.0f} us")


def measure_memory() -> None:
    """Everything but K/V when 131,072 slots are full of recorded pages; below 3 % of K/V."""
    num_slots = 2**17
    bytes_per_slot = 16 * 2 * 8 * 64 * 2  # layers, K and V, heads, head_dim, fp16
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pool = small_pool(PagePool, num_slots)
    for i in range(num_slots // NUM_TOKENS):
        prompt = [i * NUM_TOKENS + j for j in range(NUM_TOKENS)]
        assert pool.task_alloc(f"task-{i}", prompt)
        pool.task_record_hashes(f"task-{i}", prompt)
        del prompt
    pool._table.flush()
    gc.collect()
    table = pool._table._table.nbytes
    ours = tracemalloc.get_traced_memory()[0] - before + table
    tracemalloc.stop()
    stored = num_slots * bytes_per_slot
    print(
        f"index and bookkeeping: {ours / 2**20:.1f} MiB for {stored / 2**30:.0f} GiB of K/V, "
        f"{ours / stored:.2%} (target 3 %); {ours / num_slots * PAGE_SIZE:.0f} bytes a page"
    )


def load(path: Path) -> type[Any]:
    """``PagePool`` of a file."""
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    peer: type[Any] = module.PagePool
    return peer


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="a file that defines another PagePool")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer = load(options.peer) if options.peer else None
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with torch.inference_mode():
        compare_life(peer, options.rounds)
        compare_sizes(options.rounds)
        time_prefix(peer, options.rounds)
        time_bind(peer, options.rounds)
        measure_memory()


if __name__ == "__main__":
    main()
