import pytest
import torch

from astrai_kvcache import BindWorkspace, PagePool


@pytest.fixture
def pool():
    return PagePool(1, 1, 1, 4, 32, "cpu", torch.float32, page_size=4, n_tokens=64)


def test_views_are_made_once_for_steps_of_one_size(pool):
    workspace = BindWorkspace(4, 8, "cpu")
    pool.task_alloc("a", range(3))
    first = pool.bind_tasks(["a"], workspace)
    assert pool.task_extend("a", 3)
    second = pool.bind_tasks(["a"], workspace)
    assert second.seq_lens is first.seq_lens
    assert second.out_cache_loc is first.out_cache_loc
    assert (second.seq_lens.item(), second.max_len) == (4, 4)
    assert pool.task_extend("a", 5)
    assert pool.bind_tasks(["a"], workspace, q_lens=[2]).seq_lens is not first.seq_lens


@pytest.mark.parametrize("damage", ["dtype", "stride"])
def test_other_buffers_than_those_described_are_filled_by_torch(pool, damage):
    workspace = BindWorkspace(4, 8, "cpu")
    if damage == "dtype":
        workspace.seq_lens = workspace.seq_lens.int()
    else:
        workspace.seq_lens = torch.zeros(8, dtype=torch.int64)[::2]
    pool.task_alloc("a", range(3))
    pool.task_alloc("b", range(5))
    cache = pool.bind_tasks(["a", "b"], workspace)
    assert cache.seq_lens.tolist() == [3, 5]
    assert cache.seq_lens.dtype == workspace.seq_lens.dtype


@pytest.mark.parametrize("n_tokens", [None, 64])
def test_slots_of_long_prompts_are_those_of_the_table(n_tokens):
    pool = PagePool(1, 1, 1, 4, 32, "cpu", torch.float32, page_size=4, n_tokens=n_tokens)
    workspace = BindWorkspace(4, 64, "cpu")
    pool.task_alloc("a", range(30))
    pool.task_alloc("b", range(11))
    cache = pool.bind_tasks(["b", "a"], workspace, q_lens=[6, 29])
    rows = cache.req_to_token[cache.req_pool_indices]
    assert cache.out_cache_loc.tolist() == [*rows[0, 5:11].tolist(), *rows[1, 1:30].tolist()]
