"""The CUDA backend: when its kernels serve, and what happens when they cannot."""

from typing import ClassVar

import torch
from torch import Tensor

from astrai_kernels.backends.base import (
    ATTN_BACKEND,
    AttentionBackend,
    AttentionCache,
    AttentionShape,
)
from astrai_kernels.backends.fallback import warn_of_fallback
from astrai_kernels.backends.inputs import check_num_slots, check_shapes, paged_rows
from astrai_kernels.backends.torch_native import TorchNativeBackend
from astrai_kernels.cuda import attention
from astrai_kernels.cuda.attention import AttentionOptions, counters_shape
from astrai_kernels.cuda.launcher import loaded_kernel, unavailable_reason
from astrai_kernels.cuda.rotary import rotary_launch, run_rotary_store, unsupported_store
from astrai_kernels.cuda.tensors import is_aligned
from astrai_kernels.errors import BackendUnavailableError, CudaUnavailableError
from astrai_kernels.paged_rows import PagedRows
from astrai_kernels.rotary import Rotary

_DENSE = torch.contiguous_format


class CudaBackend(AttentionBackend):
    """Attention by CUDA kernels, delegating to `TorchNativeBackend` what they cannot serve.

    A step is one launch that rotates q and k and writes K/V, one for the rows of a single query
    token, and one for the others, if there can be any. The host reads nothing from the device, so
    what the index tensors hold is not checked. An instance serves one thread at a time.

    Args:
        strict: raise instead of delegating.
    """

    name: ClassVar[ATTN_BACKEND] = ATTN_BACKEND.CUDA

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._fallback = TorchNativeBackend()
        self._counters: list[Tensor] = []

    @classmethod
    def availability(cls, device: torch.device) -> str | None:
        """Say why CUDA kernels cannot run on a device, in a sentence; None when they can."""
        return unavailable_reason(device)

    def warmup(self, shape: AttentionShape) -> str | None:
        """See `AttentionBackend.warmup`: compiles and loads the kernels, a second each at worst."""
        reason = self.availability(shape.device) or attention.unsupported_shape(
            shape.dtype, shape.kv_dtype, shape.head_dim
        )
        if reason is None:
            try:
                self._load(shape)
            except CudaUnavailableError as error:
                reason = str(error)
        if reason is not None:
            self._report(reason)
        return reason

    def attend(  # noqa: PLR0913 - see AttentionBackend
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        layer_id: int,
        *,
        rotary: Rotary | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend.attend`.

        Raises:
            BackendUnavailableError: the backend is strict, and the kernels cannot serve the call.
            KernelLaunchError: the driver refuses a launch, or a kernel that was not warmed up is
                needed while a graph is captured.
            ShapeError: the tensors do not fit together.
        """
        reason = self.availability(q.device)
        if reason is None:
            check_shapes(q, k, v, cache, window)
            options = AttentionOptions(scale, window, softcap)
            try:
                return self._attend(q, k, v, cache, layer_id, rotary, options)
            except CudaUnavailableError as error:
                reason = str(error)
        self._report(reason)
        return self._fallback.attend(
            q, k, v, cache, layer_id, rotary=rotary, scale=scale, softcap=softcap, window=window
        )

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        layer_id: int,
        rotary: Rotary | None,
        options: AttentionOptions,
    ) -> Tensor:
        rows, slots = paged_rows(cache), cache.out_cache_loc.flatten()
        rows.check(len(q))
        check_num_slots(slots, len(q))
        if rotary is not None:
            rotary.check_shape(q.shape)
        q, k, v = (x if is_aligned(x) else x.clone(memory_format=_DENSE) for x in (q, k, v))
        pools = cache.k_buffer[layer_id], cache.v_buffer[layer_id]
        angles = None if rotary is None else rotary.freqs_cis
        reason = attention.unsupported(q, *pools, rows) or unsupported_store(
            q, k, v, angles, slots, *pools
        )
        if reason is not None:
            raise CudaUnavailableError(reason)
        rotated = None if rotary is None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        run_rotary_store(
            q, k, v, angles, slots, *pools, rotated,
            interleaved=rotary is not None and rotary.interleaved,
        )  # fmt: skip
        return self._attend_rows(q if rotated is None else rotated, *pools, rows, options)

    def _attend_rows(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        rows: PagedRows,
        options: AttentionOptions,
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if rows.qo_indptr is None and len(q) != rows.batch:
            attention.run_prefill(q, k_pool, v_pool, rows, options, out)
            return out
        group = q.shape[1] // k_pool.shape[1]
        counters = self._zeroed(counters_shape(rows.batch, k_pool.shape[1], group), q.device)
        attention.run_decode(q, k_pool, v_pool, rows, options, out, counters)
        if rows.qo_indptr is not None:
            attention.run_prefill(q, k_pool, v_pool, rows, options, out, min_q_len=2)
        return out

    def _zeroed(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Counters of at least a size. Smaller ones are kept too: graphs may hold their address."""
        size = shape[0] * shape[1]
        last = self._counters[-1] if self._counters else None
        if last is None or last.device != device or len(last) < size:
            last = torch.zeros(size, dtype=torch.int32, device=device)
            # While a graph is captured nothing runs: only its replays will set these to zero.
            if not torch.cuda.is_current_stream_capturing():
                self._counters.append(last)
        return last

    def _load(self, shape: AttentionShape) -> None:
        device, kind = shape.device, (shape.dtype, shape.head_dim)
        index = torch.cuda.current_device() if device.index is None else device.index
        group = shape.num_heads // shape.num_kv_heads
        for launch in (
            rotary_launch(*kind),
            attention.decode_launch(*kind, group),
            attention.prefill_launch(*kind, group),
        ):
            loaded_kernel(launch, index)
        self._zeroed(counters_shape(shape.max_batch_size, shape.num_kv_heads, group), device)

    def _report(self, reason: str) -> None:
        if self._strict:
            raise BackendUnavailableError(self.name.value, reason)
        warn_of_fallback(self.name, reason)
