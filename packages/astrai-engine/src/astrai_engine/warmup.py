"""Steps before the first request: so that it finds everything warm, and to learn what they cost."""

import logging
from math import inf
from time import perf_counter

from astrai_engine.decode_graphs import Recorder
from astrai_engine.executor import ModelExecutor
from astrai_engine.loop import StepExecutor
from astrai_engine.request import GenerationRequest
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence
from astrai_engine.speculation import FREE, StepCost
from astrai_engine.stopwatch import Stopwatch
from astrai_kvcache import PagePool

logger = logging.getLogger(__name__)

_NUM_TOKENS = 8
_MEASURED_TOKENS = (1, 4, 8, 16)
_NUM_MEASURED = 3
_MEASURING_SECONDS = 0.3
_SALT = ("warm-up",)
"""No request's, so that nothing is found: a disk tier may know the tokens already."""


def warm_up(executor: StepExecutor, pool: PagePool) -> None:
    """Run one prefill and one decode on an empty pool and leave it empty."""
    num_tokens = min(_NUM_TOKENS, pool.max_seq_len - 1)
    sequence = _sequence(num_tokens, temperature=1.0)  # its logits are written, and drawn from
    pool.task_alloc(sequence.task_id, sequence.token_ids, salt=_SALT)
    executor.execute([ScheduledSequence(sequence, num_tokens, samples=True)], Stopwatch())
    sequence.num_computed = num_tokens
    sequence.token_ids.append(0)
    pool.task_extend(sequence.task_id, num_tokens)
    executor.execute([ScheduledSequence(sequence, 1, samples=True)], Stopwatch())
    pool.task_free(sequence.task_id)


def record_decode(executor: ModelExecutor, recorder: Recorder) -> None:
    """Record decode steps, unless the model asks the device for numbers: then they run one by one.

    Args:
        executor: warm, with its kernels loaded.
        recorder: makes the recordings.
    """
    try:
        executor.record_decode(recorder)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        logger.warning("Decode steps are not recorded as CUDA graphs: %s", reason)


def measure_step_cost(executor: StepExecutor, pool: PagePool) -> StepCost:
    """Time decodes with drafts of several lengths, in an empty pool that is left empty.

    Each is run a few times, as far as that takes little time, and its fastest run counts: what
    else the machine does only adds to the others.
    """
    sequence = _sequence(1, temperature=0.0)
    pool.task_alloc(sequence.task_id, sequence.token_ids, salt=_SALT)
    seconds = {n: inf for n in _MEASURED_TOKENS if n <= pool.max_seq_len}
    started = perf_counter()
    for _ in range(_NUM_MEASURED):
        for num_tokens in seconds:
            pool.task_extend(sequence.task_id, num_tokens - 1)
            draft = (0,) * (num_tokens - 1)
            stopwatch = Stopwatch()
            executor.execute([ScheduledSequence(sequence, 1, samples=True, draft=draft)], stopwatch)
            seconds[num_tokens] = min(seconds[num_tokens], stopwatch.seconds)
        if perf_counter() - started > _MEASURING_SECONDS:
            break
    pool.task_free(sequence.task_id)
    return StepCost(seconds) if len(seconds) > 1 else FREE  # no room for guesses


def _sequence(num_tokens: int, *, temperature: float) -> Sequence:
    return Sequence(
        task_id="warm-up",
        request_id="warm-up",
        request=GenerationRequest(prompt_token_ids=[0] * num_tokens, temperature=temperature),
        index=0,
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        max_tokens=1,
        arrival=0,
        seed=0,
    )
