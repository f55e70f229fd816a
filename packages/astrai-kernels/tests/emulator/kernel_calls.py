"""Calls of the kernels on CPU tensors through the emulator, and what they must give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from emulator import Counts, Emulator, Order, pack
from torch import Tensor

from astrai_kernels.cuda import geometry
from astrai_kernels.cuda.parameters import parameter_structure
from astrai_kernels.rotary import Rotary
from astrai_kernels.testing import Step, make_step

SAMPLE_ROW = {"temperature": 1.0, "top_p": 1.0}
"""Parameters that filter nothing; those left out are 0."""

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class Options:
    """What attention is told besides its tensors."""

    scale: float | None = None
    window: int = 0
    soft_cap: float = 0.0

    def fields(self, head_dim: int) -> dict[str, float]:
        return {
            "scale": self.scale or head_dim**-0.5,
            "window": self.window,
            "soft_cap": self.soft_cap,
        }


@dataclass
class Kernels:
    """The emulator, told once in which order threads run.

    Attributes:
        counts: of the last launch.
    """

    emulator: Emulator
    order: Order = field(default_factory=Order)
    counts: Counts | None = None

    def run(self, name: str, structure: str, grid: tuple[int, int, int], **fields: object) -> None:
        self.counts = self.emulator.launch(name, pack(structure, **fields), grid, self.order)

    def rotary(self, name: str, step: Step, rotary: Rotary | None, layer_id: int = 0) -> Tensor:
        """Rotate q, and write k and v to the cache.

        Returns:
            The rotated q.
        """
        q, k, v, cache = step.q, step.k, step.v, step.cache
        q_out = torch.full(q.shape, float("nan"), dtype=q.dtype)
        k_out, v_out = cache.k_buffer[layer_id], cache.v_buffer[layer_id]
        table = rotary.freqs_cis if rotary else None
        self.run(
            name,
            "RotaryParams",
            (len(q), 1, 1),
            q=q,
            q_out=q_out,
            k=k,
            v=v,
            k_out=k_out,
            v_out=v_out,
            table=table,
            slots=cache.out_cache_loc,
            **_strides(q=q, q_out=q_out, k=k, v=v, out=k_out),
            table_stride=table.stride(0) if rotary else 0,
            num_q_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            rotary_dim=2 * table.shape[1] if rotary else 0,
            interleaved=rotary.interleaved if rotary else 0,
        )
        return q_out

    def decode(
        self, name: str, step: Step, *, splits: int = 1, ragged: bool = False, options: Options
    ) -> Tensor:
        """Attend one query per row, the cache being written already."""
        q, cache = step.q, step.cache
        (_, heads, head_dim), kv_heads = q.shape, step.k.shape[1]
        batch, group = len(cache.seq_lens), heads // kv_heads
        grid = geometry.decode_grid(kv_heads, group, batch, splits)
        counters = torch.zeros(batch, grid[0], dtype=torch.int32)
        out = torch.full(q.shape, float("nan"), dtype=q.dtype)
        self.run(
            name,
            "DecodeParams",
            grid,
            **_attention_fields(step, out, ragged),
            partial_out=torch.full((batch, heads, splits, head_dim), float("nan")),
            partial_stats=torch.full((batch, heads, splits, 2), float("nan")),
            counters=counters,
            num_kv_heads=kv_heads,
            num_splits=splits,
            **options.fields(head_dim),
        )
        assert not counters.any()
        return out

    def prefill(
        self,
        name: str,
        step: Step,
        *,
        q_len: int = 0,
        min_q_len: int = 0,
        options: Options,
    ) -> Tensor:
        """Attend ragged rows, the cache being written already; ``q_len`` for equal ones."""
        q = step.q
        (tokens, heads, head_dim), kv_heads = q.shape, step.k.shape[1]
        batch = len(step.cache.seq_lens)
        out = torch.full(q.shape, float("nan"), dtype=q.dtype)
        self.run(
            name,
            "PrefillParams",
            geometry.prefill_grid(kv_heads, heads // kv_heads, head_dim, tokens, batch),
            **_attention_fields(step, out, ragged=not q_len),
            batch=batch,
            q_len=q_len,
            min_q_len=min_q_len,
            **options.fields(head_dim),
        )
        return out

    def sample(self, logits: Tensor, rows: Sequence[Mapping[str, float]]) -> list[int]:
        """Draw a token per row of float32 logits ``[rows, vocab]``."""
        structure = parameter_structure("SampleRow")
        token_ids = torch.full((len(rows),), -99)
        self.run(
            "sample",
            "SampleParams",
            (len(rows), 1, 1),
            logits=logits,
            rows=(structure * len(rows))(*(structure(**(SAMPLE_ROW | row)) for row in rows)),
            token_ids=token_ids,
            logits_stride=logits.stride(0),
            vocab=logits.shape[1],
        )
        return token_ids.tolist()


def written_step(seq_lens: list[int], q_lens: list[int], **options: Any) -> Step:
    """A step with scattered slots whose K/V are in the cache's first layer already."""
    step = make_step(seq_lens, q_lens, shuffled=True, **options)
    cache = step.cache
    for buffer, new in ((cache.k_buffer, step.k), (cache.v_buffer, step.v)):
        buffer[0, cache.out_cache_loc] = new
    return step


def _attention_fields(step: Step, out: Tensor, ragged: bool) -> dict[str, object]:
    cache = step.cache
    k, v = cache.k_buffer[0], cache.v_buffer[0]
    return {
        "q": step.q,
        "k": k,
        "v": v,
        "out": out,
        "req_to_token": cache.req_to_token,
        "req_pool_indices": cache.req_pool_indices,
        "seq_lens": cache.seq_lens,
        "qo_indptr": cache.qo_indptr if ragged else None,
        "table_stride": cache.req_to_token.stride(0),
        **_strides(q=step.q, out=out, pool=k),
    }


def _strides(**tensors: Tensor) -> dict[str, int]:
    return {
        f"{name}_{what}_stride": tensor.stride(dim)
        for name, tensor in tensors.items()
        for dim, what in enumerate(("token", "head"))
    }


def expected_attention(step: Step, options: Options) -> Tensor:
    """Attention of a step whose cache is written, in float64."""
    cache, q = step.cache, step.q.double()
    bounds = cache.qo_indptr.tolist()
    out = torch.zeros_like(q)
    for row, length in enumerate(cache.seq_lens.tolist()):
        begin, end = bounds[row], bounds[row + 1]
        slots = cache.req_to_token[cache.req_pool_indices[row], :length].long()
        k, v = (buffer[0, slots].double() for buffer in (cache.k_buffer, cache.v_buffer))
        position = torch.arange(length - (end - begin), length)[:, None]
        key = torch.arange(length)
        hidden = key > position
        if options.window:
            hidden |= key <= position - options.window
        out[begin:end] = _attend(q[begin:end], k, v, hidden, options)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, options: Options) -> Tensor:
    if not k.numel() or not q.numel():
        return torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (options.scale or q.shape[-1] ** -0.5)
    if options.soft_cap:
        scores = options.soft_cap * (scores / options.soft_cap).tanh()
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def error(out: Tensor, expected: Tensor) -> float:
    """The largest relative error of a row; rows that must be zero have to be."""
    difference = (out.double() - expected).flatten(1).norm(dim=1)
    size = expected.flatten(1).norm(dim=1)
    return float((difference / size.clamp(min=1e-30)).nan_to_num(nan=float("inf")).max())
