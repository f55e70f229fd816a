"""Our model over a paged pool, step by step, as the engine drives it."""

import time

import torch

from astrai_engine.loading import load_model, resolve_source
from astrai_engine.loading.quantization import Precision
from astrai_kernels import CpuBackend
from astrai_kernels.ops import largest
from astrai_kvcache import BindWorkspace, PagePool

MAX_TOKENS = 8192


def prompt(length: int, stream: int) -> list[int]:
    """Token ids that no two streams share."""
    return [(37 * i + stream + 5) % 40000 for i in range(length)]


class Runner:
    """The embedded model or another, without the engine around it.

    Args:
        path: a model; None is the embedded one.
        activation_bits: 16, or 8.
        precision: of the weights.
    """

    def __init__(
        self, path: str | None = None, activation_bits: int = 16, precision: Precision = "file"
    ) -> None:
        self.loaded = load_model(
            resolve_source(path),
            device=torch.device("cpu"),
            dtype=torch.float32,
            precision=precision,
            activation_bits=activation_bits,
        )
        config, self.model = self.loaded.config, self.loaded.model
        kv_dtype = torch.float32 if precision == "none" else torch.float16
        self.pool = PagePool(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            32,
            MAX_TOKENS,
            torch.device("cpu"),
            kv_dtype,
            page_size=16,
            n_tokens=MAX_TOKENS,
            prefix_cache=False,
        )
        self.workspace = BindWorkspace(32, MAX_TOKENS, torch.device("cpu"))
        self.backend = CpuBackend(strict=True)

    @torch.inference_mode()
    def logits(
        self, tasks: dict[str, int], new: list[list[int]], *, every: bool = False
    ) -> torch.Tensor:
        """Compute new tokens of each task, whose lengths are advanced.

        Args:
            tasks: the tasks' lengths; changed.
            new: token ids for each task.
            every: give the logits of all tokens, not of each task's last one.
        """
        positions: list[int] = []
        for (task, length), ids in zip(tasks.items(), new, strict=True):
            end = length + len(ids)
            pool = self.pool
            reserved = pool.task_extend(task, end - 1) if length else pool.task_alloc(task, ids)
            if not reserved:
                raise MemoryError(f"The pool of {MAX_TOKENS} tokens has no room for {task}.")
            positions += range(length, end)
            tasks[task] = end
        q_lens = [len(ids) for ids in new]
        cache = self.pool.bind_tasks(list(tasks), self.workspace, q_lens=q_lens)
        all_rows = every or max(q_lens) == 1
        rows = None if all_rows else torch.tensor(q_lens).cumsum(0) - 1
        packed = torch.tensor([token for each in new for token in each])
        return self.model.forward(
            packed, torch.tensor(positions), cache, self.backend, logit_rows=rows
        )

    def free(self, tasks: dict[str, int]) -> None:
        """Give the tasks' memory back."""
        for task in tasks:
            self.pool.task_free(task)

    def decode_rate(self, streams: int, num_prompt: int, num_new: int) -> float:
        """Generated tokens per second over all streams, greedily."""
        tasks = {str(stream): 0 for stream in range(streams)}
        logits = self.logits(tasks, [prompt(num_prompt, stream) for stream in range(streams)])
        start = time.perf_counter()
        for _ in range(num_new):
            logits = self.logits(tasks, largest(logits, 1)[1].tolist())
        elapsed = time.perf_counter() - start
        self.free(tasks)
        return streams * num_new / elapsed

    def prefill_rate(self, num_prompt: int) -> float:
        """Prompt tokens per second."""
        tasks = {"long": 0}
        start = time.perf_counter()
        self.logits(tasks, [prompt(num_prompt, 0)])
        elapsed = time.perf_counter() - start
        self.free(tasks)
        return num_prompt / elapsed
