"""The prefill kernel on the emulator: against float64, over ragged batches."""

from dataclasses import replace

import pytest
import torch
from emulator import ALL_ORDERS
from kernel_calls import DTYPES, Kernels, Options, error, expected_attention, written_step

TOLERANCE = {"bf16": 6e-3, "f16": 1e-3}
CASES = [("bf16", 64, 3), ("f16", 96, 1), ("bf16", 128, 4), ("f16", 256, 2)]
PLAIN = Options()
SMALLEST = ("bf16", 64, 3)


def make(dtype, head_dim, group, seq_lens, q_lens, kv_heads=1):
    """The name of an instance and a step for it."""
    heads = (kv_heads * group, kv_heads)
    step = written_step(seq_lens, q_lens, heads=heads, head_dim=head_dim, dtype=DTYPES[dtype])
    return f"prefill_{dtype}_{head_dim}_{group}", step


def check(kernels, case, seq_lens, q_lens, options=PLAIN, **sizes):
    name, step = make(*case, seq_lens, q_lens, **sizes)
    out = kernels.prefill(name, step, options=options)
    assert error(out, expected_attention(step, options)) < TOLERANCE[case[0]]
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attends(kernels, case):
    check(kernels, case, [70, 0, 9, 40], [25, 2, 1, 40])
    assert kernels.counts.bank_conflicts == 0


@pytest.mark.parametrize("order", ALL_ORDERS, ids=str)
def test_attends_in_any_order(emulator, order):
    check(Kernels(emulator, order), ("bf16", 128, 4), [100], [36])


@pytest.mark.parametrize(
    "options",
    [
        *(Options(window=window) for window in (1, 7, 64, 1000)),
        Options(scale=0.3),
        Options(soft_cap=2.0),
        Options(soft_cap=30.0, scale=4.0, window=9),
    ],
    ids=str,
)
def test_honours_its_options(plain, options):
    check(plain, SMALLEST, [150, 0, 45], [70, 1, 45], options)


def test_serves_all_kv_heads(plain):
    check(plain, SMALLEST, [20, 30], [5, 30], kv_heads=3)


def test_finds_its_row_in_any_batch(plain):
    """More rows than a warp has lanes, some without tokens, some of several tiles."""
    q_lens = [1, 0, 2, 90] * 9
    check(plain, SMALLEST, [max(n, 3) for n in q_lens], q_lens)


@pytest.mark.parametrize("q_len", [1, 5])
def test_serves_equal_rows_without_qo_indptr(plain, q_len):
    name, step = make(*SMALLEST, [12, 70, 5], [q_len] * 3)
    out = plain.prefill(name, step, q_len=q_len, options=PLAIN)
    assert error(out, expected_attention(step, PLAIN)) < TOLERANCE["bf16"]


def test_leaves_short_rows_to_the_decode_kernel(plain):
    name, step = make(*SMALLEST, [9, 12, 70], [1, 4, 1])
    out = plain.prefill(name, step, min_q_len=2, options=PLAIN)
    expected = expected_attention(step, PLAIN)
    assert error(out[1:5], expected[1:5]) < TOLERANCE["bf16"]
    assert out[[0, 5]].isnan().all()


def test_a_chunk_attends_as_the_whole_prompt_does(plain):
    """B189: the last rows of a prompt, with the others in the cache."""
    name, whole = make(*SMALLEST, [20], [20])
    full = plain.prefill(name, whole, options=PLAIN)
    cache = replace(whole.cache, qo_indptr=torch.tensor([0, 4], dtype=torch.int32))
    chunk = replace(whole, q=whole.q[16:], cache=cache)
    assert torch.equal(plain.prefill(name, chunk, options=PLAIN), full[16:])


@pytest.mark.parametrize("history", [63, 64, 65, 128])
def test_hides_later_tokens_of_a_chunk(plain, history):
    """B190: the first query's result does not depend on the tokens after it."""
    name, step = make(*SMALLEST, [history + 5], [5])
    before = plain.prefill(name, step, options=PLAIN)
    later = step.cache.out_cache_loc[1:]
    step.cache.k_buffer[0, later] *= -50
    step.cache.v_buffer[0, later] *= -50
    after = plain.prefill(name, step, options=PLAIN)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1:], after[1:])


def test_a_lone_query_sees_no_later_slot(plain):
    """B199: what lies beyond a row's length is not read, whatever it is."""
    name, step = make(*SMALLEST, [20], [1])
    before = plain.prefill(name, step, options=PLAIN)
    step.cache.seq_lens[0] = 12
    step.cache.req_to_token[step.cache.req_pool_indices[0], 12:] = 2**31 - 1
    after = plain.prefill(name, step, options=PLAIN)
    assert error(after, expected_attention(step, PLAIN)) < TOLERANCE["bf16"]
    assert not torch.equal(before, after)


def test_gives_decode_rows_what_the_decode_kernel_gives(plain):
    name, step = make(*SMALLEST, [20, 70], [1, 1])
    decoded = plain.decode(name.replace("prefill", "decode"), step, options=PLAIN)
    prefilled = plain.prefill(name, step, options=PLAIN)
    torch.testing.assert_close(prefilled, decoded, rtol=2e-2, atol=2e-2)


def test_reads_queries_in_a_fused_projection(plain):
    """B195: views give what contiguous tensors give."""
    name, step = make(*SMALLEST, [9, 70], [4, 30])
    fused = torch.cat((step.q, step.k, step.v), 1)
    views = replace(step, q=fused[:, : step.q.shape[1]])
    of_views, contiguous = (plain.prefill(name, each, options=PLAIN) for each in (views, step))
    assert torch.equal(of_views, contiguous)
