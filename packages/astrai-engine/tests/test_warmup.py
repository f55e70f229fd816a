import torch

from astrai_engine.testing import ScriptedExecutor
from astrai_engine.warmup import warm_up
from astrai_kvcache import PagePool
from astrai_kvcache.testing import check_invariants


def test_a_prefill_and_a_decode_run_before_the_first_request_and_leave_nothing():
    """B211: the first request finds everything warm."""
    executor = ScriptedExecutor(lambda sequence: 0)
    pool = PagePool(1, 1, 2, 4, 64, torch.device("cpu"), torch.float32, page_size=4, n_tokens=64)
    warm_up(executor, pool)
    assert [[tokens for _, tokens in step] for step in executor.steps] == [[8], [1]]
    assert pool.num_free_pages == pool.num_pages
    check_invariants(pool)
