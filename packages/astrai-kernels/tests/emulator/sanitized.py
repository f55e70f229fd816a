"""Runs every kernel under a sanitizer, whose runtime must be preloaded.

python sanitized.py LIBRARY [--past-pool]: at the end, read a slot past the pool.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from emulator import ORDERS, Emulator
from kernel_calls import DTYPES, Kernels, Options, error, expected_attention, written_step

from astrai_kernels.testing import Step

CAPPED = Options(window=60, soft_cap=5.0)


def step_for(dtype: str, group: int, seq_lens: list[int], q_lens: list[int]) -> Step:
    return written_step(seq_lens, q_lens, heads=(2 * group, 2), head_dim=64, dtype=DTYPES[dtype])


def run_kernels(kernels: Kernels) -> None:
    """All kernels on small inputs."""
    prompt = step_for("bf16", 3, [70, 0, 40], [25, 1, 40])
    assert torch.equal(kernels.rotary("rotary_bf16_64", prompt, None), prompt.q)
    out = kernels.prefill("prefill_bf16_64_3", prompt, options=CAPPED)
    assert error(out, expected_attention(prompt, CAPPED)) < 6e-3
    for name, dtype, group in (("decode_bf16_64_3", "bf16", 3), ("decode_f16_64_8", "f16", 8)):
        step = step_for(dtype, group, [1, 0, 131], [1, 1, 1])
        out = kernels.decode(name, step, splits=3, options=Options())
        assert error(out, expected_attention(step, Options())) < 5e-3
    rows = [{"seed": 1, "min_p": 0.01}, {"top_k": 20, "top_p": 0.8}]
    assert min(kernels.sample(torch.randn(2, 1000), rows)) >= 0


def read_past_pool(kernels: Kernels) -> None:
    """Decode with a slot one past the pool's last."""
    step = step_for("bf16", 3, [37], [1])
    k, v = (buffer[:1].clone() for buffer in (step.cache.k_buffer, step.cache.v_buffer))
    step = replace(step, cache=replace(step.cache, k_buffer=k, v_buffer=v))
    step.cache.req_to_token[step.cache.req_pool_indices[0], 20] = k.shape[1]
    kernels.decode("decode_bf16_64_3", step, options=Options())


if __name__ == "__main__":
    library = Emulator(Path(sys.argv[1]))
    for order in ORDERS:
        run_kernels(Kernels(library, order))
    sys.stdout.write("kernels are clean\n")
    sys.stdout.flush()
    if "--past-pool" in sys.argv:
        read_past_pool(Kernels(library))
