"""What every attention backend must do, as tests to subclass."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from astrai_kernels.backends.base import AttentionBackend
from astrai_kernels.errors import ShapeError
from astrai_kernels.testing.check import TOLERANCE, check_attend
from astrai_kernels.testing.reference import reference_attend
from astrai_kernels.testing.steps import Step, make_rotary, make_step


class AttentionBackendContract:
    """What every `AttentionBackend` must do, as tests; subclass it in a test file.

    Attributes:
        device: where the tests run.
        dtype: of the tests that are about something else.
        dtypes: of q, k and v that the backend serves.
        kv_dtypes: of caches that it serves.
        reads_indices: it looks at the numbers in the cache's index tensors on the host, and so
            refuses those that contradict each other.
    """

    device: ClassVar[str] = "cpu"
    dtype: ClassVar[torch.dtype] = torch.float32
    dtypes: ClassVar[Sequence[torch.dtype]] = tuple(TOLERANCE)
    kv_dtypes: ClassVar[Sequence[torch.dtype]] = tuple(TOLERANCE)
    reads_indices: ClassVar[bool] = True

    def create_backend(self) -> AttentionBackend:
        """Make the backend under test."""
        raise NotImplementedError

    def make(self, seq_lens: Sequence[int], q_lens: Sequence[int], **options: Any) -> Step:
        """Call `make_step` for this device."""
        return make_step(seq_lens, q_lens, device=self.device, **{"dtype": self.dtype, **options})

    @pytest.mark.parametrize("shuffled", [False, True])
    @pytest.mark.parametrize(
        ("seq_lens", "q_lens"),
        [
            pytest.param([1], [1], id="first token"),
            pytest.param([9], [1], id="one decode row"),
            pytest.param([5, 5, 5], [1, 1, 1], id="equal decode rows"),
            pytest.param([3, 40, 1, 9, 300, 600], [1] * 6, id="unequal decode rows"),
            pytest.param([1500, 1400, 1300, 900], [1] * 4, id="long decode rows"),
            pytest.param([7], [7], id="prompt"),
            pytest.param([20], [4], id="last chunk of a prompt"),
            pytest.param([300, 5], [300, 3], id="prompt of several query blocks"),
            pytest.param([400], [150], id="long chunk after a prefix hit"),
            pytest.param([33, 6, 12, 50, 1], [1, 6, 5, 1, 1], id="prefill and decode mixed"),
        ],
    )
    def test_matches_the_reference(
        self, seq_lens: list[int], q_lens: list[int], shuffled: bool
    ) -> None:
        """Ragged batches, wherever their slots are; NaN in other slots never shows."""
        check_attend(self.create_backend(), self.make(seq_lens, q_lens, shuffled=shuffled))

    @pytest.mark.parametrize("heads", [(1, 1), (4, 4), (8, 1), (6, 2), (14, 2)])
    @pytest.mark.parametrize("head_dim", [8, 56, 80, 96, 128])
    def test_serves_any_group_and_head_dim(self, heads: tuple[int, int], head_dim: int) -> None:
        """From one query head per K/V head to all over one."""
        step = self.make([12, 9, 5], [1, 4, 1], heads=heads, head_dim=head_dim)
        check_attend(self.create_backend(), step)

    def test_serves_its_dtypes(self) -> None:
        """The cache's dtype need not be the queries'."""
        for dtype in self.dtypes:
            for kv_dtype in self.kv_dtypes:
                step = self.make([12, 9, 600], [1, 4, 1], dtype=dtype, kv_dtype=kv_dtype)
                check_attend(self.create_backend(), step)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_rotates_before_writing(self, interleaved: bool) -> None:
        """The cache holds rotated keys."""
        step = self.make([12, 9], [1, 4])
        rotary = make_rotary(step, interleaved=interleaved)
        check_attend(self.create_backend(), step, rotary=rotary)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_rotates_the_first_part_of_a_head(self, interleaved: bool) -> None:
        """What lies behind the rotated elements stays as it is."""
        step = self.make([12, 9], [1, 4])
        rotary = make_rotary(step, interleaved=interleaved, dim=24)
        check_attend(self.create_backend(), step, rotary=rotary)

    def test_caps_scores(self) -> None:
        """Scores are squeezed before they are masked, in decode and in prefill."""
        step = self.make([600, 70, 9, 12], [1, 60, 1, 12], shuffled=True)
        check_attend(self.create_backend(), step, scale=0.6, softcap=3.0)
        check_attend(self.create_backend(), step, softcap=5.0, window=7)

    @pytest.mark.parametrize("window", [1, 4, 64, 1000])
    @pytest.mark.parametrize("shuffled", [False, True])
    def test_slides_its_window(self, window: int, shuffled: bool) -> None:
        """A token sees the last positions only."""
        step = self.make([600, 70, 3, 200], [1, 1, 1, 140], shuffled=shuffled)
        check_attend(self.create_backend(), step, window=window)

    def test_scales_scores(self) -> None:
        """The default scale can be replaced."""
        check_attend(self.create_backend(), self.make([12, 9], [1, 4]), scale=0.3)

    def test_serves_each_layer_from_its_own_buffer(self) -> None:
        """A step's layers share their cache object, and differing windows do not mix."""
        backend, step = self.create_backend(), self.make([12, 9], [1, 4])
        check_attend(backend, step, 0)
        check_attend(backend, step, 1)
        check_attend(backend, step, 1, window=3)

    def test_serves_equal_rows_without_qo_indptr(self) -> None:
        """Without ``qo_indptr``, ``out_cache_loc`` is ``[batch, q_len]``."""
        for q_len in (1, 3):
            step = self.make([12, 9], [q_len] * 2)
            loc = step.cache.out_cache_loc.view(2, q_len)
            cache = replace(step.cache, qo_indptr=None, out_cache_loc=loc)
            check_attend(self.create_backend(), replace(step, cache=cache))

    @pytest.mark.parametrize(
        ("seq_lens", "q_lens"),
        [([0, 9], [1, 1]), ([12, 0, 9], [1, 2, 4]), ([12, 9], [0, 1]), ([0], [1]), ([5], [0])],
    )
    def test_gives_zeros_for_idle_rows(self, seq_lens: list[int], q_lens: list[int]) -> None:
        """Rows without keys or queries disturb no neighbour."""
        check_attend(self.create_backend(), self.make(seq_lens, q_lens))

    def test_skips_negative_slots(self) -> None:
        """A padding token with slot -1 writes nothing."""
        step = self.make([9, 0, 7], [1, 1, 2])
        loc = step.cache.out_cache_loc.clone()
        loc[1] = -1
        cache = replace(step.cache, out_cache_loc=loc)
        check_attend(self.create_backend(), replace(step, cache=cache))

    def test_pads_decode_batches(self) -> None:
        """A row that pads a batch, as in a CUDA graph, reads and writes nothing."""
        step = self.make([12, 9, 30, 0], [1] * 4)
        loc = step.cache.out_cache_loc.clone()
        loc[3] = -1
        cache = replace(step.cache, out_cache_loc=loc.view(4, 1), qo_indptr=None)
        check_attend(self.create_backend(), replace(step, cache=cache))

    def test_remembers_nothing_of_earlier_steps(self) -> None:
        """Long rows then short ones, many then few, by one backend."""
        backend = self.create_backend()
        for seq_lens, q_lens in (
            ([300, 520, 7], [1, 1, 1]),
            ([5], [1]),
            ([90, 300, 2, 9], [70, 1, 2, 1]),
            ([6, 3], [1, 1]),
        ):
            check_attend(backend, self.make(seq_lens, q_lens, shuffled=True))

    def test_reaches_slots_beyond_32_bits(self) -> None:
        """Past 2^31 elements of a pool, whose untouched memory a CPU never commits."""
        step = self.make([300, 9, 3], [1, 1, 2], heads=(4, 2), dtype=torch.float16, shuffled=True)
        expected, cache = reference_attend(step).out, step.cache
        first_slot = 2**31 // (4 * 64)
        num_slots = first_slot + cache.k_buffer.shape[1]
        pool = torch.empty(1, num_slots, 4, 64, dtype=torch.float16, device=self.device)
        pool[0, first_slot:, :2], pool[0, first_slot:, 2:] = cache.k_buffer[0], cache.v_buffer[0]
        far_cache = replace(
            cache,
            k_buffer=pool[:, :, :2],
            v_buffer=pool[:, :, 2:],
            req_to_token=cache.req_to_token + first_slot,
            out_cache_loc=cache.out_cache_loc + first_slot,
        )
        out = replace(step, cache=far_cache).attend(self.create_backend())
        torch.testing.assert_close(out.double(), expected, rtol=4e-3, atol=4e-3)

    def test_serves_views_of_a_fused_projection(self) -> None:
        """q, k and v may be strided views."""
        step = self.make([12, 9, 600], [1, 4, 1])
        fused = torch.cat((step.q, step.k, step.v), 1)
        q, k, v = fused[:, :9], fused[:, 9:12], fused[:, 12:]
        check_attend(self.create_backend(), replace(step, q=q, k=k, v=v))

    @pytest.mark.parametrize("history", [63, 64, 65, 128])
    def test_hides_later_tokens_of_a_chunk(self, history: int) -> None:
        """The first query's result does not depend on the tokens after it."""
        outs = []
        for later in (1.0, -50.0):
            step = self.make([history + 5], [5], shuffled=True)
            for x in (step.q, step.k, step.v):
                x[1:] *= later
            outs.append(step.attend(self.create_backend())[0])
        assert torch.equal(*outs)

    def test_gives_a_lone_query_the_same_in_prefill_and_decode(self) -> None:
        """A chunk of one token sees no slot beyond its own, junk there or not."""
        chunk = self.make([20], [1])
        chunk.cache.req_to_token[:, 19:] = 0
        chunk.cache.req_to_token[chunk.cache.req_pool_indices[0], 19] = chunk.cache.out_cache_loc[0]
        decode = replace(
            chunk, cache=replace(chunk.cache, qo_indptr=None, k_buffer=chunk.cache.k_buffer.clone())
        )
        backend = self.create_backend()
        assert torch.equal(chunk.attend(backend), decode.attend(backend))

    def test_refuses_tensors_that_do_not_fit(self) -> None:
        """Each misfit is a `ShapeError`."""
        step, backend = self.make([12, 9], [1, 4]), self.create_backend()
        for misfit in (
            replace(step, q=step.q.flatten(1)),
            replace(step, v=step.v[:, :2]),
            replace(step, q=step.q[:-1]),
            replace(step, q=step.q[:, :8]),
            replace(step, k=step.k[:, :1], v=step.v[:, :1]),
            replace(step, cache=replace(step.cache, out_cache_loc=step.cache.out_cache_loc[1:])),
            replace(step, cache=replace(step.cache, qo_indptr=None)),
            replace(step, cache=replace(step.cache, qo_indptr=step.cache.kv_indptr[:2])),
        ):
            with pytest.raises(ShapeError):
                misfit.attend(backend)
        with pytest.raises(ShapeError, match="window"):
            step.attend(backend, window=0)

    def test_refuses_numbers_that_do_not_fit(self) -> None:
        """Where the host reads the index tensors, each contradiction is a `ShapeError`."""
        if not self.reads_indices:
            return
        step, backend = self.make([12, 9], [1, 4]), self.create_backend()
        for misfit in (
            replace(step.cache, qo_indptr=step.cache.kv_indptr),
            replace(step.cache, seq_lens=step.cache.seq_lens - 7),
            replace(step.cache, max_len=11),
        ):
            with pytest.raises(ShapeError):
                replace(step, cache=misfit).attend(backend)
