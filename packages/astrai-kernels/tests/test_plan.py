import pytest
import torch

from astrai_kernels.backends.plan import (
    IN_PLACE_MIN_KEYS,
    MAX_GATHERED_KEYS,
    QUERY_BLOCK,
    plan_step,
)
from astrai_kernels.testing import make_step

LONG = IN_PLACE_MIN_KEYS


def plan(seq_lens, q_lens, *, window=None, shuffled=False):
    step = make_step(seq_lens, q_lens, heads=(1, 1), head_dim=2, shuffled=shuffled)
    return plan_step(step.cache, len(step.q), window, torch.float32)


def test_short_decode_rows_share_one_padded_call():
    (group,) = plan([9, 5, 7], [1, 1, 1]).padded
    assert group.is_whole_step
    assert group.slots.shape == (3, 9)
    assert group.slots.dtype == torch.int64
    assert (group.mask == 0).sum(-1).flatten().tolist() == [9, 5, 7]


def test_a_padded_row_repeats_its_own_last_slot():
    (group,) = plan([4, 2], [1, 1]).padded
    assert group.slots[1, 1:].unique().numel() == 1


def test_equal_decode_rows_need_no_mask():
    (group,) = plan([6, 6], [1, 1]).padded
    assert group.mask is None


def test_rows_much_shorter_than_the_longest_are_padded_apart():
    short, long = sorted(
        plan([300, 8, 290, 5], [1] * 4).padded, key=lambda each: each.slots.numel()
    )
    assert (short.tokens.tolist(), long.tokens.tolist()) == ([1, 3], [0, 2])
    assert not short.is_whole_step


def test_a_batch_gathers_a_bounded_number_of_keys():
    batches = plan([MAX_GATHERED_KEYS // 2] * 3 + [2 * MAX_GATHERED_KEYS], [1] * 4, shuffled=True)
    assert [batch.slots.shape[0] for batch in batches.padded] == [1, 2, 1]


@pytest.mark.parametrize(("length", "is_in_place"), [(LONG - 1, False), (LONG, True)])
def test_long_consecutive_decode_rows_are_read_in_place(length, is_in_place):
    step = plan([length, 3], [1, 1])
    assert [isinstance(row.slots, slice) for row in step.rows] == [True] * is_in_place
    assert len(plan([length, 3], [1, 1], shuffled=True).rows) == 0


def test_a_lone_consecutive_decode_row_is_read_in_place():
    (row,) = plan([3], [1]).rows
    assert isinstance(row.slots, slice)
    (block,) = row.blocks
    assert block.mask is None


def test_prefill_is_cut_into_blocks_that_read_only_what_they_see():
    (row,) = plan([2 * QUERY_BLOCK + 30], [2 * QUERY_BLOCK + 10]).rows
    assert [(block.tokens.start, block.tokens.stop) for block in row.blocks] == [
        (0, QUERY_BLOCK),
        (QUERY_BLOCK, 2 * QUERY_BLOCK),
        (2 * QUERY_BLOCK, 2 * QUERY_BLOCK + 10),
    ]
    assert [block.keys.stop - 20 for block in row.blocks] == [
        block.tokens.stop for block in row.blocks
    ]


def test_a_window_limits_the_keys_read():
    (row,) = plan([300], [QUERY_BLOCK + 2], window=10).rows
    assert row.slots.stop - row.slots.start == QUERY_BLOCK + 2 + 9
    assert [(block.keys.start, block.keys.stop) for block in row.blocks] == [
        (0, QUERY_BLOCK + 9),
        (QUERY_BLOCK, QUERY_BLOCK + 11),
    ]
    (group,) = plan([300, 200], [1, 1], window=10).padded
    assert group.slots.shape == (2, 10)


def test_blocks_share_the_memory_of_one_mask():
    first, second = plan([50, 20], [10, 10]).rows
    masks = [row.blocks[0].mask for row in (first, second)]
    assert masks[0].untyped_storage().data_ptr() == masks[1].untyped_storage().data_ptr()


def test_an_idle_step_has_no_work():
    step = plan([0, 5], [2, 0])
    assert (step.padded, step.rows, step.has_idle_tokens) == ((), (), True)
