"""What a step is after its way to a worker."""

from dataclasses import replace

import pytest
import torch

from astrai_engine.parallel.step import Step, decode, encode
from astrai_kernels import ATTN_BACKEND
from astrai_kvcache import BindWorkspace, KVStorage, PagePool

CPU = torch.device("cpu")
PAGE_SIZE = 4


@pytest.fixture
def pool():
    pool = PagePool(1, 1, 2, 4, 32, CPU, torch.float32, page_size=PAGE_SIZE, n_tokens=96)
    pool.task_alloc("gone", list(range(9)))
    for task_id, length in (("a", 6), ("b", 11)):
        pool.task_alloc(task_id, list(range(length)))
    pool.task_free("gone")
    return pool


def sent(step):
    """The step as a worker has it."""
    content = bytearray(encode(step, PAGE_SIZE))
    storage = KVStorage(96, 1, 1, 2, CPU, torch.float32)
    received = decode(content, storage, PAGE_SIZE)
    assert received.cache.k_buffer is storage.k_buffer
    assert received.cache.v_buffer is storage.v_buffer
    return received


def tables(cache):
    """The slots of each row's positions."""
    return [
        cache.req_to_token[row, :length].tolist()
        for row, length in zip(cache.req_pool_indices, cache.seq_lens.tolist(), strict=True)
    ]


def assert_same(found, step):
    assert torch.equal(found.input_ids, step.input_ids)
    assert torch.equal(found.position_ids, step.position_ids)
    assert found.backend is step.backend
    assert tables(found.cache) == tables(step.cache)
    assert found.cache.max_len == step.cache.max_len
    for name in ("seq_lens", "out_cache_loc", "kv_indptr", "qo_indptr"):
        mine, theirs = getattr(found.cache, name), getattr(step.cache, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("q_lens", [None, [6, 2], [3, 0]])
@pytest.mark.parametrize("rows", [None, [], [1, 0]])
def test_a_step_arrives_as_it_was(pool, q_lens, rows):
    cache = pool.bind_tasks(["a", "b"], BindWorkspace(4, 32, CPU), q_lens=q_lens)
    count = sum(q_lens or [1, 1])
    wanted = None if rows is None else torch.tensor(rows, dtype=torch.long)
    step = Step(torch.arange(count), torch.arange(count) + 5, cache, ATTN_BACKEND.CPU, wanted)
    found = sent(step)
    assert_same(found, step)
    assert (found.logit_rows is None) == (rows is None)
    assert rows is None or found.logit_rows.tolist() == rows


def test_rows_that_share_a_table_row_send_it_once(pool):
    cache = pool.bind_tasks(["b", "a"], BindWorkspace(4, 32, CPU), q_lens=[2, 1])
    guessed = replace(
        cache,
        req_pool_indices=cache.req_pool_indices[torch.tensor([0, 0, 1])],
        seq_lens=torch.tensor([10, 11, 6]),
        kv_indptr=torch.tensor([0, 10, 21, 27], dtype=torch.int32),
        qo_indptr=torch.tensor([0, 1, 2, 3], dtype=torch.int32),
    )
    step = Step(torch.arange(3), torch.arange(3), guessed, ATTN_BACKEND.TORCH_NATIVE, None)
    found = sent(step)
    assert_same(found, step)
    assert len(found.cache.req_to_token) == 2
