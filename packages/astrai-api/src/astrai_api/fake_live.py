"""What watchers of the scripted engine see: its open requests, each on pages of its own."""

from collections.abc import Iterable
from itertools import accumulate

from astrai_api.fake_handle import FakeHandle
from astrai_engine.live_frame import EndedRequest, LiveFrame, LiveRequest, LiveTotals


def fake_frame(
    number: int,
    at: float,
    handles: Iterable[FakeHandle],
    ended: Iterable[EndedRequest],
    *,
    num_pages: int,
    page_size: int,
) -> LiveFrame:
    """A frame in which every open request runs with its prompt computed."""
    open_handles = [handle for handle in handles if handle.is_open]
    counts = [-(-handle.num_prompt_tokens // page_size) for handle in open_handles]
    ends = list(accumulate(counts))
    requests = tuple(
        LiveRequest(
            task_id=f"{handle.request_id}.0",
            request_id=handle.request.request_id,
            is_running=True,
            submitted_at=handle.submitted_at,
            num_prompt_tokens=handle.num_prompt_tokens,
            num_cached=0,
            num_computed=handle.num_prompt_tokens,
            num_generated=0,
            max_tokens=handle.request.max_tokens or 0,
            page_runs=((end - count, count),),
        )
        for handle, count, end in zip(open_handles, counts, ends, strict=True)
    )
    num_used = ends[-1] if ends else 0
    runs = ((2, num_used), (0, num_pages - num_used))
    return LiveFrame(
        number=number,
        at=at,
        num_running=len(requests),
        num_waiting=0,
        requests=requests,
        ended=tuple(ended),
        steps=(),
        num_pages=num_pages,
        page_stride=1,
        page_states=tuple(run for run in runs if run[1] > 0),
        totals=LiveTotals(0, 0, 0, 0, 0, 0, 0),
    )
