import pytest
import torch

import astrai_kvcache.binding
from astrai_kvcache import BindError, BindWorkspace, SharedPageError, UnknownTaskError


@pytest.fixture(autouse=True, params=["in host memory", "on a device"])
def where(request):
    """Every test binds both ways."""
    if request.param == "on a device":
        request.getfixturevalue("far_tables")
    return request.param


on_a_device = pytest.mark.parametrize("where", ["on a device"], indirect=True)


@pytest.fixture
def pool(make_pool):
    return make_pool()


@pytest.fixture
def workspace():
    return BindWorkspace(4, 64, "cpu")


@pytest.fixture
def fills(monkeypatch):
    """Counts the steps that were filled from the host instead of advanced in place."""
    counted = []
    original = astrai_kvcache.binding.StepBinder._fill
    monkeypatch.setattr(
        astrai_kvcache.binding.StepBinder,
        "_fill",
        lambda *args: counted.append(1) or original(*args),
    )
    return counted


def assert_describes(cache, pool, lengths, q_lens):
    """Compare every field with what the arguments mean, by the definition of each."""
    ids = list(lengths)
    rows = [pool._tasks.by_id[task_id].row for task_id in ids]
    table = pool._table.req_to_token
    sums = [sum(list(lengths.values())[:i]) for i in range(len(ids) + 1)]
    assert cache.req_pool_indices.tolist() == rows
    assert cache.seq_lens.tolist() == list(lengths.values())
    assert cache.kv_indptr.tolist() == sums
    assert cache.kv_indptr.dtype == torch.int32
    assert cache.max_len == max(lengths.values(), default=0)
    assert torch.equal(cache.req_to_token, table)
    written = []
    for row, length, q_len in zip(rows, lengths.values(), q_lens, strict=True):
        written += table[row, length - q_len : length].tolist()
    assert cache.out_cache_loc.flatten().tolist() == written
    assert cache.out_cache_loc.dtype == torch.int64
    if cache.qo_indptr is not None:
        assert cache.qo_indptr.tolist() == [sum(q_lens[:i]) for i in range(len(ids) + 1)]


def test_ragged_prefill_mixed_with_decode(pool, workspace):
    for task_id, length in (("a", 9), ("b", 5), ("c", 17)):
        pool.task_alloc(task_id, range(length))
    cache = pool.bind_tasks(["c", "a", "b"], workspace, q_lens=[17, 1, 3])
    assert_describes(cache, pool, {"c": 17, "a": 9, "b": 5}, [17, 1, 3])
    assert cache.out_cache_loc.shape == (21,)
    assert cache.qo_indptr.dtype == torch.int32
    assert cache.k_buffer is pool.storage.k_buffer
    assert cache.v_buffer is pool.storage.v_buffer


def test_rows_without_new_tokens(pool, workspace):
    pool.task_alloc("a", range(5))
    pool.task_alloc("b", [])
    cache = pool.bind_tasks(["b", "a"], workspace, q_lens=[0, 0])
    assert_describes(cache, pool, {"b": 0, "a": 5}, [0, 0])


def test_an_empty_step(pool, workspace):
    cache = pool.bind_tasks([], workspace)
    assert_describes(cache, pool, {}, [])
    assert cache.out_cache_loc.shape == (0, 1)
    assert pool.bind_tasks([], workspace, q_lens=[]).out_cache_loc.shape == (0,)
    assert pool.bind_tasks([], workspace, start_pos=0).out_cache_loc.shape == (0, 0)


def test_decode_has_the_shape_of_the_seed(pool, workspace):
    for task_id, length in (("a", 9), ("b", 5)):
        pool.task_alloc(task_id, range(length))
    cache = pool.bind_tasks(["a", "b"], workspace)
    assert cache.out_cache_loc.shape == (2, 1)
    assert cache.qo_indptr is None
    assert_describes(cache, pool, {"a": 9, "b": 5}, [1, 1])


def test_equal_prefill_has_the_shape_of_the_seed(pool, workspace):
    for task_id in ("a", "b"):
        pool.task_alloc(task_id, range(9))
    cache = pool.bind_tasks(["a", "b"], workspace, start_pos=3)
    assert cache.out_cache_loc.shape == (2, 6)
    assert cache.qo_indptr is None
    assert_describes(cache, pool, {"a": 9, "b": 9}, [6, 6])


def test_equal_prefill_needs_no_room_in_the_workspace(pool):
    pool.task_alloc("a", range(9))
    cache = pool.bind_tasks(["a"], BindWorkspace(1, 1, "cpu"), start_pos=0)
    assert cache.out_cache_loc.shape == (1, 9)


def test_metadata_are_views_of_the_fixed_buffers(pool, workspace):
    pool.task_alloc("a", range(5))
    for q_lens in ([5], [1], None):
        cache = pool.bind_tasks(["a"], workspace, q_lens=q_lens)
        for name in ("req_pool_indices", "seq_lens", "kv_indptr", "out_cache_loc"):
            assert getattr(cache, name).data_ptr() == getattr(workspace, name).data_ptr()
        if q_lens is not None:
            assert cache.qo_indptr.data_ptr() == workspace.qo_indptr.data_ptr()


@on_a_device
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_steady_decode_advances_in_place(make_pool, workspace, fills, packed, page_size):
    pool = make_pool(page_size=page_size)
    lengths = {"a": 3, "b": 7}
    for task_id, length in lengths.items():
        pool.task_alloc(task_id, range(length))
    for _ in range(12):
        cache = pool.bind_tasks(list(lengths), workspace, q_lens=[1, 1] if packed else None)
        assert_describes(cache, pool, lengths, [1, 1])
        for task_id in lengths:
            assert pool.task_extend(task_id, lengths[task_id])
            lengths[task_id] += 1
    assert len(fills) == 1


@on_a_device
def test_decode_shapes_can_alternate_in_place(pool, workspace, fills):
    pool.task_alloc("a", range(3))
    for length in range(4, 9):
        pool.task_extend("a", length - 1)
        cache = pool.bind_tasks(["a"], workspace, q_lens=[1] if length % 2 else None)
        assert_describes(cache, pool, {"a": length}, [1])
    assert len(fills) == 1


def test_decode_right_after_prefill(pool, workspace):
    pool.task_alloc("a", range(6))
    pool.task_alloc("b", range(3))
    pool.bind_tasks(["a", "b"], workspace, q_lens=[6, 3])
    pool.task_extend("a", 6)
    pool.task_extend("b", 3)
    cache = pool.bind_tasks(["a", "b"], workspace, q_lens=[1, 1])
    assert_describes(cache, pool, {"a": 7, "b": 4}, [1, 1])


def extended(pool, lengths):
    for task_id, length in lengths.items():
        assert pool.task_extend(task_id, length - 1)


def change_order(pool, workspace):
    extended(pool, {"a": 6, "b": 4})
    return ["b", "a"], {"b": 4, "a": 6}


def drop_a_task(pool, workspace):
    extended(pool, {"a": 6})
    return ["a"], {"a": 6}


def extend_one_only(pool, workspace):
    extended(pool, {"a": 6})
    return ["a", "b"], {"a": 6, "b": 3}


def extend_by_two(pool, workspace):
    extended(pool, {"a": 7, "b": 5})
    return ["a", "b"], {"a": 7, "b": 5}


def replace_a_task_under_its_id(pool, workspace):
    pool.task_free("a")
    assert pool.task_alloc("x", range(9))
    assert pool.task_alloc("a", range(6))
    extended(pool, {"b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


def replace_a_task_in_its_row(pool, workspace):
    pool.task_free("a")
    for task_id in ("x", "y", "z"):
        pool.task_alloc(task_id, [1])
    pool.task_free("z")
    assert pool.task_alloc("a", range(6))
    extended(pool, {"b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


def bind_something_between(pool, workspace):
    pool.task_alloc("x", range(2))
    pool.bind_tasks(["x"], workspace, q_lens=[2])
    extended(pool, {"a": 6, "b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


def bind_equal_between(pool, workspace):
    pool.task_alloc("x", range(2))
    pool.bind_tasks(["x"], workspace, start_pos=0)
    extended(pool, {"a": 6, "b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


def write_the_buffers_between(pool, workspace):
    workspace.seq_lens.zero_()
    extended(pool, {"a": 6, "b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


def rewrite_the_buffers_in_inference_mode(pool, workspace):
    with torch.inference_mode():
        workspace.kv_indptr[:2].add_(5)
    extended(pool, {"a": 6, "b": 4})
    return ["a", "b"], {"a": 6, "b": 4}


@on_a_device
@pytest.mark.parametrize(
    "change",
    [
        change_order,
        drop_a_task,
        extend_one_only,
        extend_by_two,
        replace_a_task_under_its_id,
        replace_a_task_in_its_row,
        bind_something_between,
        bind_equal_between,
        write_the_buffers_between,
        rewrite_the_buffers_in_inference_mode,
    ],
)
def test_any_other_change_fills_the_buffers_anew(pool, workspace, fills, change):
    pool.task_alloc("a", range(5))
    pool.task_alloc("b", range(3))
    pool.bind_tasks(["a", "b"], workspace)
    task_ids, lengths = change(pool, workspace)
    fills.clear()
    cache = pool.bind_tasks(task_ids, workspace)
    assert_describes(cache, pool, lengths, [1] * len(task_ids))
    assert fills


def test_each_workspace_is_right_when_two_alternate(pool, workspace):
    other = BindWorkspace(4, 64, "cpu")
    pool.task_alloc("a", range(5))
    for length in range(5, 12):
        assert pool.task_extend("a", length - 1)
        cache = pool.bind_tasks(["a"], workspace if length % 2 else other)
        assert_describes(cache, pool, {"a": length}, [1])


def test_two_pools_may_share_a_workspace(make_pool, workspace):
    pools = [make_pool(), make_pool(page_size=1)]
    for pool, length in zip(pools, (5, 9), strict=True):
        pool.task_alloc("a", range(length))
    for step in range(5):
        for pool, length in zip(pools, (5, 9), strict=True):
            assert pool.task_extend("a", length + step - 1)
            assert_describes(pool.bind_tasks(["a"], workspace), pool, {"a": length + step}, [1])


@on_a_device
def test_a_page_replaced_between_decode_steps_is_seen(pool, workspace, fills):
    pool.task_alloc("a", range(8))
    pool.task_alloc("b", range(8))
    pool.bind_tasks(["a", "b"], workspace)
    pool.task_record_hashes("a", range(8))
    pool.task_record_hashes("b", range(8))
    extended(pool, {"a": 9, "b": 9})
    cache = pool.bind_tasks(["a", "b"], workspace)
    assert_describes(cache, pool, {"a": 9, "b": 9}, [1, 1])
    assert cache.req_to_token[0, :8].tolist() == cache.req_to_token[1, :8].tolist()
    assert len(fills) == 1


@on_a_device
def test_inference_mode_may_come_and_go(pool, workspace, fills):
    pool.task_alloc("a", range(5))
    for length in range(5, 12):
        assert pool.task_extend("a", length - 1)
        with torch.inference_mode(length % 2 == 0):
            assert_describes(pool.bind_tasks(["a"], workspace), pool, {"a": length}, [1])
    assert len(fills) == 1


@on_a_device
def test_a_workspace_made_in_inference_mode_by_others_is_filled_each_time(pool, workspace, fills):
    with torch.inference_mode():
        workspace.seq_lens = torch.zeros(4, dtype=torch.int64)
        pool.task_alloc("a", range(5))
        for length in range(5, 8):
            assert pool.task_extend("a", length - 1)
            assert_describes(pool.bind_tasks(["a"], workspace), pool, {"a": length}, [1])
    assert len(fills) == 3


@on_a_device
def test_a_step_costs_one_transfer_at_most(make_pool, workspace, monkeypatch):
    sent = []
    original = astrai_kvcache.binding.to_device

    def counting(numbers, device):
        sent.append(device)
        return original(numbers, device)

    monkeypatch.setattr("astrai_kvcache.binding.to_device", counting)
    monkeypatch.setattr("astrai_kvcache.req_to_token.to_device", counting)
    pool = make_pool()
    pool.task_alloc("a", range(6))
    pool.task_alloc("b", range(5))
    pool.bind_tasks(["a", "b"], workspace, q_lens=[6, 5])
    assert len(sent) == 1
    counts = []
    for length in range(6, 12):
        extended(pool, {"a": length + 1, "b": length})
        sent.clear()
        pool.bind_tasks(["a", "b"], workspace)
        counts.append(len(sent))
    assert counts == [1, 0, 1, 1, 0, 0]  # filled; then only where a page was added


@on_a_device
def test_the_device_of_the_transfer_can_be_named(pool, workspace, monkeypatch):
    devices = []
    original = astrai_kvcache.binding.to_device
    monkeypatch.setattr(
        "astrai_kvcache.binding.to_device",
        lambda numbers, device: devices.append(device) or original(numbers, device),
    )
    pool.task_alloc("a", range(3))
    pool.bind_tasks(["a"], workspace, torch.device("cpu", 0))
    pool.bind_tasks(["a"], workspace)
    assert devices == [torch.device("cpu", 0), torch.device("cpu")]


@pytest.mark.parametrize(
    ("task_ids", "arguments", "message"),
    [
        (["a", "b"], {"q_lens": [1]}, "1 q_lens for 2 tasks"),
        (["a"], {"q_lens": [1, 1]}, "2 q_lens for 1 tasks"),
        (["a", "a"], {}, "named twice"),
        (["a"], {"q_lens": [6]}, "A task of 5 tokens cannot compute 6"),
        (["a"], {"q_lens": [-1]}, "A task of 5 tokens cannot compute -1"),
        (["empty"], {}, "A task of 0 tokens cannot compute 1"),
        (["a"], {"start_pos": 6}, "A task of 5 tokens cannot compute -1"),
        (["a", "b"], {"start_pos": 0}, r"equal length, not \[3, 5\]"),
        (["a"], {"start_pos": 0, "q_lens": [5]}, "not both"),
    ],
)
def test_impossible_steps_are_refused_and_change_nothing(
    pool, workspace, fills, where, task_ids, arguments, message
):
    pool.task_alloc("a", range(5))
    pool.task_alloc("b", range(3))
    pool.task_alloc("empty", [])
    pool.bind_tasks(["a", "b"], workspace)
    with pytest.raises(BindError, match=message):
        pool.bind_tasks(task_ids, workspace, **arguments)
    extended(pool, {"a": 6, "b": 4})
    assert_describes(pool.bind_tasks(["a", "b"], workspace), pool, {"a": 6, "b": 4}, [1, 1])
    assert len(fills) == (where == "on a device")


def test_binding_an_unknown_task_raises(pool, workspace):
    with pytest.raises(UnknownTaskError, match="No task is named 'x'"):
        pool.bind_tasks(["x"], workspace)


@pytest.mark.parametrize(
    ("workspace", "message"),
    [(BindWorkspace(1, 64, "cpu"), "max_batch_size"), (BindWorkspace(2, 7, "cpu"), "max_tokens")],
)
def test_a_workspace_that_is_too_small_is_refused(pool, workspace, message):
    pool.task_alloc("a", range(5))
    pool.task_alloc("b", range(3))
    with pytest.raises(BindError, match=message):
        pool.bind_tasks(["a", "b"], workspace, q_lens=[5, 3])


def test_a_shared_page_is_never_written(pool, workspace):
    pool.task_alloc("a", range(9))
    pool.bind_tasks(["a"], workspace, q_lens=[9])
    pool.task_record_hashes("a", range(9))
    pool.task_alloc("b", range(9))
    for arguments in ({"q_lens": [2]}, {"start_pos": 7}):
        with pytest.raises(SharedPageError, match="would write position 7, but the first 8"):
            pool.bind_tasks(["b"], workspace, **arguments)
        with pytest.raises(SharedPageError):
            pool.bind_tasks(["a"], workspace, **arguments)
    assert pool.bind_tasks(["b"], workspace, start_pos=8).out_cache_loc.shape == (1, 1)


def test_lengths_taken_back_into_a_shared_page_cannot_be_written(pool, workspace):
    pool.task_alloc("a", range(9))
    pool.task_record_hashes("a", range(9))
    assert pool.task_extend("a", 6)
    with pytest.raises(SharedPageError):
        pool.bind_tasks(["a"], workspace)
