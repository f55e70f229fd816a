import pytest
from kernel_calls import DTYPES, Options, error, expected_attention, written_step

TOLERANCE = {"bf16": 6e-3, "f16": 1e-3}
CASES = [("bf16", 64, 3), ("f16", 96, 1), ("bf16", 128, 4), ("f16", 256, 2)]


def make(dtype, head_dim, group, seq_lens, q_lens, kv_heads=1):
    """The name of an instance and a step for it."""
    heads = (kv_heads * group, kv_heads)
    step = written_step(seq_lens, q_lens, heads=heads, head_dim=head_dim, dtype=DTYPES[dtype])
    return f"prefill_{dtype}_{head_dim}_{group}", step


@pytest.mark.parametrize(("dtype", "head_dim", "group"), CASES)
def test_attends(kernels, dtype, head_dim, group):
    name, step = make(dtype, head_dim, group, [70, 0, 9, 40], [25, 2, 1, 40])
    out = kernels.prefill(name, step, options=Options())
    assert error(out, expected_attention(step, Options())) < TOLERANCE[dtype]
    assert kernels.counts.bank_conflicts == 0
