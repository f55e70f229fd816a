"""The kernels as torch ops: what they compute on CPUs, and that they trace and compile."""

from dataclasses import replace

import pytest
import torch

from astrai_kernels import ShapeError, apply_rotary_emb, ops
from astrai_kernels.cuda import attention, rotary, sampling
from astrai_kernels.paged_rows import PagedRows
from astrai_kernels.testing import make_rotary, make_step, reference_attend

OPS = torch.ops.astrai


def stored(lengths, counts, **options):
    """A step whose K/V are in the pool, and what attention must give."""
    step = make_step(lengths, counts, shuffled=True, **options)
    expected = reference_attend(step)
    cache = replace(step.cache, k_buffer=expected.k_buffer, v_buffer=expected.v_buffer)
    return replace(step, cache=cache), expected.out


def arguments(step):
    cache = step.cache
    return (
        step.q,
        cache.k_buffer[0],
        cache.v_buffer[0],
        cache.req_to_token,
        cache.req_pool_indices,
        cache.seq_lens,
    )


def test_decode_attends_one_token_a_row():
    step, expected = stored([12, 0, 40], [1, 1, 1])
    out = ops.attn_paged_decode(*arguments(step), max_len=40)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_prefill_attends_ragged_rows():
    step, expected = stored([12, 0, 40, 70], [3, 2, 1, 70])
    out = ops.attn_paged_prefill(*arguments(step), step.cache.qo_indptr, max_len=70)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_results_can_have_a_place_given():
    step, expected = stored([12, 40], [2, 2])
    place = torch.full_like(step.q, float("nan"))
    out = ops.attn_paged_prefill(*arguments(step), None, max_len=40, out=place)
    assert out is place
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_scores_can_be_capped(window):
    """A cap far above all scores changes nothing; a low one is computed by hand."""
    step, _ = stored([12, 9], [1, 1])

    def attend(cap):
        return ops.attn_paged_decode(*arguments(step), max_len=12, window=window, softcap=cap)

    torch.testing.assert_close(attend(1e4), attend(None), rtol=1e-4, atol=1e-4)
    slots = step.cache.req_to_token[step.cache.req_pool_indices[0], 12 - (window or 12) : 12].long()
    k, v = (buffer[0, slots, 0].double() for buffer in (step.cache.k_buffer, step.cache.v_buffer))
    scores = 0.5 * (k @ step.q[0, 0].double() / 8 / 0.5).tanh()
    expected = scores.softmax(-1) @ v
    torch.testing.assert_close(attend(0.5)[0, 0].double(), expected, rtol=1e-4, atol=1e-4)


def test_attention_refuses_tensors_that_do_not_fit():
    step, _ = stored([12, 9], [1, 1])
    counters = torch.zeros(2, 3, dtype=torch.int32)
    q, k, v, *rows = arguments(step)
    for misfit in (
        (q[0], k, v, *rows),
        (q, k[:, :, :8], v[:, :, :8], *rows),
        (q, k, v[:5], *rows),
        (q[:, :8], k, v, *rows),
        (q[:1], k, v, *rows),
    ):
        with pytest.raises(ShapeError):
            ops.attn_paged_decode(*misfit, max_len=12)
    ops.attn_paged_decode(q, k, v, *rows, max_len=12, counters=counters)
    for wrong in (
        {"window": 0},
        {"out": q.double()},
        {"out": q[:1]},
        {"counters": counters.long()},
        {"counters": counters[1]},
        {"counters": counters.expand(2, 2, 3)},
        {"counters": counters.to("meta")},
    ):
        with pytest.raises(ShapeError):
            ops.attn_paged_decode(q, k, v, *rows, max_len=12, **wrong)


def test_kernels_refuse_what_they_could_not_reach():
    """On a GPU these calls would read or write through addresses that are none there."""
    step, _ = stored([12, 9], [1, 1], dtype=torch.bfloat16)
    q, k, v, *table = arguments(step)
    rows, far = PagedRows(*table, None, 12), {"device": "meta"}
    assert attention.unsupported(q, k, v, rows, torch.empty_like(q)) is None
    for out, reason in (
        (torch.empty(*q.shape[:2], 65, dtype=q.dtype)[..., 1:], "begin at multiples of 16 bytes"),
        (q.mT.contiguous().mT, "contiguous"),
        (q.to(**far), "on one device, and are on cpu and meta"),
    ):
        assert reason in attention.unsupported(q, k, v, rows, out)
    for name in ("req_to_token", "req_pool_indices", "seq_lens"):
        misplaced = replace(rows, **{name: getattr(rows, name).to(**far)})
        assert "on one device" in attention.unsupported(q, k, v, misplaced)
    angles, slots = make_rotary(step).freqs_cis, step.cache.out_cache_loc
    assert rotary.unsupported_store(q, step.k, step.v, angles, slots, k, v) is None
    assert "on one device" in rotary.unsupported(q, angles.to(**far))
    assert "multiple of 16 bytes" in rotary.unsupported(q, angles[:, 1:17])
    assert "on one device" in rotary.unsupported_store(
        q, step.k, step.v, angles, slots.to(**far), k, v
    )
    logits, sampled = torch.randn(2, 9), ops.pack_rows([ops.SampleRow()] * 2)
    assert sampling.unsupported_rows(logits, sampled) is None
    assert "on one device" in sampling.unsupported_rows(logits, sampled.to(**far))
    assert "contiguous and int64" in sampling.unsupported_rows(logits, sampled.int())
    assert "contiguous" in sampling.unsupported_rows(logits, sampled.mT.contiguous().mT)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_that_of_apply_rotary_emb(interleaved):
    step = make_step([12, 9], [1, 4])
    angles = make_rotary(step).freqs_cis
    rotated = ops.rotary_emb(step.q, angles, interleaved=interleaved)
    expected = apply_rotary_emb(step.q, angles, interleaved=interleaved)
    torch.testing.assert_close(rotated, expected, rtol=1e-6, atol=1e-6)


def test_the_end_of_a_head_may_stay_as_it_is():
    step = make_step([12, 9], [1, 4])
    angles = make_rotary(step).freqs_cis[:, :8]
    rotated = ops.rotary_emb(step.q, angles)
    torch.testing.assert_close(rotated, apply_rotary_emb(step.q, angles), rtol=1e-6, atol=1e-6)
    assert torch.equal(rotated[..., 16:], step.q[..., 16:])


def test_rotating_stores_in_the_same_call():
    step = make_step([12, 9], [1, 4])
    rotary = make_rotary(step)
    slots = step.cache.out_cache_loc.clone()
    slots[2] = -1
    step = replace(step, cache=replace(step.cache, out_cache_loc=slots))
    expected = reference_attend(step, rotary=rotary)
    k_pool, v_pool = step.cache.k_buffer[0], step.cache.v_buffer[0]
    q = ops.rotary_emb_store(
        step.q, step.k, step.v, rotary.freqs_cis, slots, k_pool, v_pool, interleaved=False
    )
    torch.testing.assert_close(q, rotary.apply(step.q), rtol=1e-6, atol=1e-6)
    for pool, wanted in ((k_pool, expected.k_buffer), (v_pool, expected.v_buffer)):
        torch.testing.assert_close(pool, wanted[0], rtol=1e-6, atol=1e-6, equal_nan=True)


def test_rotation_refuses_tensors_that_do_not_fit():
    step = make_step([12, 9], [1, 4])
    angles, slots = make_rotary(step).freqs_cis, step.cache.out_cache_loc
    k_pool, v_pool = step.cache.k_buffer[0], step.cache.v_buffer[0]
    for misfit in ((step.q[:1], angles), (step.q[..., :32], angles), (step.q[0], angles)):
        with pytest.raises(ShapeError):
            ops.rotary_emb(*misfit)
    for misfit in (
        (step.v[:, :1], slots, k_pool, v_pool),
        (step.v, slots[:2], k_pool, v_pool),
        (step.v, slots, k_pool[:, :1], v_pool),
        (step.v, slots, k_pool, v_pool[:4]),
    ):
        with pytest.raises(ShapeError):
            ops.rotary_emb_store(step.q, step.k, misfit[0], angles, *misfit[1:])


def op_calls():
    """Each op with arguments as its wrapper passes them."""
    step, _ = stored([6, 5], [1, 2], heads=(2, 1), head_dim=8)
    cache, angles = step.cache, make_rotary(step).freqs_cis
    q, k_pool, v_pool, *rows = arguments(step)
    pools = (k_pool.clone(), v_pool.clone())
    options = (6, None, None, None)
    return {
        "decode": (
            OPS.attn_paged_decode.default,
            (q[:2], k_pool, v_pool, *rows, *options, torch.empty_like(q[:2]), None),
        ),
        "prefill": (
            OPS.attn_paged_prefill.default,
            (q, k_pool, v_pool, *rows, *options, torch.empty_like(q), cache.qo_indptr),
        ),
        "rotary": (OPS.rotary_emb.default, (q, angles, False)),
        "store": (
            OPS.rotary_emb_store.default,
            (q, step.k, step.v, angles, cache.out_cache_loc, *pools, True),
        ),
        "sample": (
            OPS.sample_rows.default,
            (torch.randn(2, 9), ops.pack_rows([ops.SampleRow(top_k=3), ops.SampleRow()])),
        ),
    }


@pytest.mark.parametrize("name", ["decode", "prefill", "rotary", "store", "sample"])
def test_ops_are_declared_as_torch_wants_them(name):
    op, call = op_calls()[name]
    torch.library.opcheck(op, call)


def test_ops_compile_in_one_graph():
    step, _ = stored([6, 5], [1, 2], heads=(2, 1), head_dim=8)
    cache, angles = step.cache, make_rotary(step).freqs_cis
    k_pool, v_pool = cache.k_buffer[0].nan_to_num(), cache.v_buffer[0].nan_to_num()
    rows = (cache.req_to_token, cache.req_pool_indices, cache.seq_lens)
    sampled = ops.pack_rows([ops.SampleRow(seed=n) for n in range(3)])

    def layer(q, k, v, k_pool, v_pool):
        q = ops.rotary_emb_store(q, k, v, angles, cache.out_cache_loc, k_pool, v_pool)
        ragged = ops.attn_paged_prefill(q, k_pool, v_pool, *rows, cache.qo_indptr, max_len=6)
        single = ops.attn_paged_decode(ragged[1:], k_pool, v_pool, *rows, max_len=6)
        logits = ops.rotary_emb(torch.cat((ragged[:1], single)), angles).flatten(1)
        return logits, ops.sample_rows(logits, sampled)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = (step.q, step.k, step.v)
    pools = [pool.clone() for pool in (k_pool, v_pool)]
    expected = layer(*inputs, k_pool, v_pool)
    for got, wanted in zip(compiled(*inputs, *pools), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(pools, [k_pool, v_pool])
