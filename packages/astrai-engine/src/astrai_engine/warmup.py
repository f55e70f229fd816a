"""One prefill and one decode before the first request, so that it finds everything warm."""

from astrai_engine.loop import StepExecutor
from astrai_engine.request import GenerationRequest
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence
from astrai_engine.stopwatch import Stopwatch
from astrai_kvcache import PagePool

_NUM_TOKENS = 8


def warm_up(executor: StepExecutor, pool: PagePool) -> None:
    """Run two steps on an empty pool and leave it empty."""
    num_tokens = min(_NUM_TOKENS, pool.max_seq_len - 1)
    sequence = Sequence(
        task_id="warm-up",
        request_id="warm-up",
        request=GenerationRequest(prompt_token_ids=[0] * num_tokens, temperature=0.0),
        index=0,
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        max_tokens=1,
        arrival=0,
        seed=0,
    )
    pool.task_alloc(sequence.task_id, sequence.token_ids)
    executor.execute([ScheduledSequence(sequence, num_tokens, samples=True)], Stopwatch())
    sequence.num_computed = num_tokens
    sequence.token_ids.append(0)
    pool.task_extend(sequence.task_id, num_tokens)
    executor.execute([ScheduledSequence(sequence, 1, samples=True)], Stopwatch())
    pool.task_free(sequence.task_id)
