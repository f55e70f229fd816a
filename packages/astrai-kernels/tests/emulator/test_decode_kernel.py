import pytest
from kernel_calls import DTYPES, Options, error, expected_attention, written_step

TOLERANCE = {"bf16": 5e-3, "f16": 1e-3}
CASES = [
    ("bf16", 64, 3),
    ("f16", 96, 1),
    ("bf16", 128, 4),
    ("f16", 256, 2),
    ("f16", 64, 8),
    ("bf16", 96, 5),
    ("bf16", 128, 20),
    ("bf16", 256, 16),
]
ON_EACH_UNIT = [("bf16", 64, 3), ("f16", 64, 8)]


def make(dtype, head_dim, group, seq_lens, kv_heads=2):
    """The name of an instance and a step for it."""
    heads = (kv_heads * group, kv_heads)
    step = written_step(
        seq_lens, [1] * len(seq_lens), heads=heads, head_dim=head_dim, dtype=DTYPES[dtype]
    )
    return f"decode_{dtype}_{head_dim}_{group}", step


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("dtype", "head_dim", "group"), CASES)
def test_attends(kernels, dtype, head_dim, group, splits):
    name, step = make(dtype, head_dim, group, [1, 0, 70, 131])
    out = kernels.decode(name, step, splits=splits, options=Options())
    assert error(out, expected_attention(step, Options())) < TOLERANCE[dtype]
    assert kernels.counts.bank_conflicts == 0
