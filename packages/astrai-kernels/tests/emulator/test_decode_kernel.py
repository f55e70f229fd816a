"""The decode kernels on the emulator: against float64, on both kinds of cores."""

from dataclasses import replace

import pytest
import torch
from emulator import ALL_ORDERS
from kernel_calls import DTYPES, Kernels, Options, error, expected_attention, written_step

TOLERANCE = {"bf16": 5e-3, "f16": 1e-3}
CASES = [
    ("bf16", 64, 3),
    ("f16", 96, 1),
    ("f16", 256, 2),
    ("bf16", 128, 4),
    ("f16", 256, 4),
    ("f16", 64, 8),
    ("bf16", 96, 5),
    ("f16", 64, 9),
    ("bf16", 128, 20),
    ("bf16", 256, 16),
]
PLAIN = Options()
# CUDA cores, and tensor cores with one and with two products for the heads.
ON_EACH_UNIT = [("bf16", 64, 3), ("f16", 64, 8), ("f16", 64, 9)]


def make(dtype, head_dim, group, seq_lens, q_lens=None, kv_heads=2):
    """The name of an instance and a step for it."""
    heads = (kv_heads * group, kv_heads)
    step = written_step(
        seq_lens, q_lens or [1] * len(seq_lens), heads=heads, head_dim=head_dim, dtype=DTYPES[dtype]
    )
    return f"decode_{dtype}_{head_dim}_{group}", step


def check(kernels, case, seq_lens, options=PLAIN, **launch):
    name, step = make(*case, seq_lens)
    out = kernels.decode(name, step, options=options, **launch)
    assert error(out, expected_attention(step, options)) < TOLERANCE[case[0]]
    return out


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attends(kernels, case, splits):
    check(kernels, case, [1, 0, 70, 131], splits=splits)
    assert kernels.counts.bank_conflicts == 0


@pytest.mark.parametrize("order", ALL_ORDERS, ids=str)
@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_attends_in_any_order(emulator, case, order):
    check(Kernels(emulator, order), case, [150, 64], splits=2)


@pytest.mark.parametrize(
    "options",
    [
        *(Options(window=window) for window in (1, 7, 64, 100, 1000)),
        Options(scale=0.3),
        Options(soft_cap=2.0),
        Options(soft_cap=30.0, scale=4.0, window=9),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_honours_its_options(plain, case, options):
    check(plain, case, [0, 5, 131], options, splits=3)


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 192])
@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_lengths_around_the_size_of_a_split(plain, case, length):
    check(plain, case, [length], splits=4)


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_large_scores_stay_finite(plain, case):
    check(plain, case, [70], Options(scale=30.0), splits=2)


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_padded_rows_of_a_graph_are_harmless(plain, case):
    """B197, B198: rows of length 0 with a table row of zeros give zeros, and change no other."""
    name, step = make(*case, [9, 70, 0, 0])
    cache = step.cache
    cache.req_to_token[cache.req_pool_indices[2:]] = 0
    few = replace(cache, req_pool_indices=cache.req_pool_indices[:2], seq_lens=cache.seq_lens[:2])
    padded = plain.decode(name, step, options=PLAIN)
    alone = plain.decode(name, replace(step, q=step.q[:2], cache=few), options=PLAIN)
    assert torch.equal(padded[:2], alone)
    assert not padded[2:].any()


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_the_same_grid_serves_what_came_later(plain, case):
    """B196: a grid does not depend on lengths; stale columns of the table are never read."""
    name, step = make(*case, [300, 2])
    cache = step.cache
    for lengths in ([300, 2], [17, 1], [1, 0]):
        cache.seq_lens.copy_(torch.tensor(lengths))
        for row, length in zip(cache.req_pool_indices, lengths, strict=True):
            cache.req_to_token[row, length:] = 2**31 - 1
        out = plain.decode(name, step, splits=4, options=PLAIN)
        assert error(out, expected_attention(step, PLAIN)) < TOLERANCE[case[0]]


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_skips_rows_that_are_not_decoding(plain, case):
    name, step = make(*case, [9, 12, 70], [1, 4, 1])
    out = plain.decode(name, step, ragged=True, options=PLAIN)
    expected = expected_attention(step, PLAIN)
    decoding = torch.tensor([0, 5])
    assert error(out[decoding], expected[decoding]) < TOLERANCE[case[0]]
    assert out[1:5].isnan().all()


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_reads_queries_in_a_fused_projection(plain, case):
    """B195: views give what contiguous tensors give."""
    name, step = make(*case, [9, 70])
    fused = torch.cat((step.q, step.k, step.v), 1)
    views = replace(step, q=fused[:, : step.q.shape[1]])
    of_views, contiguous = (plain.decode(name, each, options=PLAIN) for each in (views, step))
    assert torch.equal(of_views, contiguous)


@pytest.mark.parametrize("case", ON_EACH_UNIT, ids=str)
def test_reaches_slots_beyond_2_31_elements(plain, case):
    """B192: a pool of three rows so far apart that the last one's offset needs 64 bits."""
    name, step = make(*case, [2])
    cache = step.cache
    stride = 2**30 + 64
    memory = torch.empty(2 * stride + 8192, dtype=step.q.dtype)  # reserved; hardly any is touched
    size = (3, *step.k.shape[1:])
    pools = [memory.as_strided(size, (stride, size[2], 1), begin) for begin in (0, 4096)]
    table_row = cache.req_to_token[cache.req_pool_indices[0]]
    for buffer, pool in zip((cache.k_buffer, cache.v_buffer), pools, strict=True):
        pool[1:] = buffer[0, table_row.long()]
    table_row.copy_(torch.tensor([1, 2]))
    cache.req_to_token[cache.req_pool_indices[0]] = table_row
    far = replace(step, cache=replace(cache, k_buffer=pools[0][None], v_buffer=pools[1][None]))
    out = plain.decode(name, far, options=PLAIN)
    assert error(out, expected_attention(far, PLAIN)) < TOLERANCE[case[0]]
