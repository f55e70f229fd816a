from dataclasses import replace

import pytest
import torch

from astrai_kernels import AttentionBackend, ShapeError, TorchNativeBackend
from astrai_kernels.ops import tiles
from astrai_kernels.testing import AttentionBackendContract, check_attend, make_rotary, make_step
from astrai_kernels.testing.steps import StepCache


class OnDevice(TorchNativeBackend):
    """Plans steps as on a GPU, on tensors of the CPU."""

    @staticmethod
    def _plans_on_device(device):
        return True


class TestPlansOnDevice(AttentionBackendContract):
    reads_indices = False

    def create_backend(self) -> AttentionBackend:
        return OnDevice()


def test_small_tiles_and_few_scores_at_a_time_change_nothing(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_TOKENS", 4)
    monkeypatch.setattr(tiles, "MAX_SCORES", 3000)
    for lengths, counts in ([33, 6, 0, 50, 8], [13, 6, 5, 1, 8]), ([9], [9]), ([0, 5], [3, 0]):
        for window in (None, 3):
            check_attend(OnDevice(), make_step(lengths, counts, shuffled=True), window=window)


def test_tokens_without_a_slot_overwrite_nothing():
    """Slot 0 keeps what another token of the step writes there, and what it held if none does."""
    step = make_step([3, 3], [1, 1])
    for buffer in (step.cache.k_buffer, step.cache.v_buffer):
        buffer.nan_to_num_(2.0)
    for slots in ([-1, 0], [0, -1], [-1, -1]):
        cache = replace(step.cache, out_cache_loc=torch.tensor(slots))
        check_attend(OnDevice(), replace(step, cache=cache))


@pytest.mark.parametrize("rows", [([5, 9, 40], [1, 1, 1]), ([5, 9, 40], [1, 7, 3])])
@pytest.mark.parametrize("window", [None, 4])
def test_the_host_waits_for_no_number(rows, window):
    """On tensors that hold no numbers: what asks them for one raises."""
    real = make_step(*rows)
    cache = StepCache(
        **{
            name: value.to("meta") if isinstance(value, torch.Tensor) else value
            for name, value in vars(real.cache).items()
        }
    )
    tokens = {name: getattr(real, name).to("meta") for name in ("q", "k", "v", "position_ids")}
    step = replace(real, cache=cache, **tokens)
    rotary = make_rotary(step)
    for attended in (cache, replace(cache, qo_indptr=None)):
        if attended.qo_indptr is None and rows[1] != [1, 1, 1]:
            continue
        out = replace(step, cache=attended).attend(
            TorchNativeBackend(), rotary=rotary, window=window
        )
        assert (out.shape, out.device.type) == (step.q.shape, "meta")
    with pytest.raises(NotImplementedError, match="no data"):
        cache.seq_lens.tolist()


def test_shapes_of_index_tensors_are_checked():
    cache = make_step([5, 9], [1, 2]).cache
    empty = {"seq_lens": cache.seq_lens[:0], "qo_indptr": None}
    for misfit, tokens in (
        (replace(cache, qo_indptr=None), 3),
        (replace(cache, qo_indptr=cache.qo_indptr[:2]), 3),
        (replace(cache, **empty), 3),
        (replace(cache, req_pool_indices=cache.req_pool_indices[:1]), 3),
        (cache, 4),
    ):
        with pytest.raises(ShapeError):
            OnDevice()._make_plan(misfit, torch.empty(tokens, 9, 64), None)
