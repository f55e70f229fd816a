from astrai_engine.packing import pack_step
from astrai_engine.request import GenerationRequest
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence


def make(name, token_ids, *, num_prompt, num_computed=0, **parameters):
    request = GenerationRequest(prompt_token_ids=token_ids[:num_prompt], **parameters)
    return Sequence(
        task_id=name,
        request_id=name,
        request=request,
        index=0,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt,
        max_tokens=9,
        arrival=0,
        seed=0,
        num_computed=num_computed,
    )


def test_sequences_follow_each_other_with_their_own_positions():
    prompt = make("a", [10, 11, 12, 13], num_prompt=4)
    decode = make("b", [20, 21, 22], num_prompt=2, num_computed=2)
    chunk = make("c", [30, 31, 32, 33, 34], num_prompt=5, num_computed=1)
    step = pack_step(
        [
            ScheduledSequence(prompt, 4, samples=True),
            ScheduledSequence(decode, 1, samples=True),
            ScheduledSequence(chunk, 2, samples=False),
        ]
    )
    assert step.token_ids == [10, 11, 12, 13, 22, 31, 32]
    assert step.position_ids == [0, 1, 2, 3, 2, 1, 2]
    assert step.num_tokens == [4, 1, 2]
    assert step.sampling == [prompt, decode]
    assert step.sampling_rows == [3, 4]
    assert step.scored == []


def test_positions_begin_at_the_sequences_offset():
    sequence = make("a", [5, 6, 7, 8], num_prompt=4, num_computed=1)
    sequence.position_offset = 100
    step = pack_step([ScheduledSequence(sequence, 3, samples=True)])
    assert step.position_ids == [101, 102, 103]


def test_sequences_of_different_offsets_share_no_pages():
    plain, shifted = (make(name, [5, 6], num_prompt=2, cache_salt="t") for name in "ab")
    shifted.position_offset = 100
    assert (plain.cache_salt, shifted.cache_salt) == ("t", ("t", 100))


def test_prompt_positions_are_scored_once_in_whatever_chunks_they_come():
    sequence = make("a", [1, 2, 3, 4, 5], num_prompt=5, prompt_logprobs=0)
    step = pack_step([ScheduledSequence(sequence, 3, samples=False)])
    assert step.scored_rows == [0, 1, 2]
    assert step.scored[0].next_tokens == [2, 3, 4]
    sequence.prompt_logprobs = ["scored"] * 3
    again = pack_step([ScheduledSequence(sequence, 5, samples=True)])  # after a preemption
    assert again.scored_rows == [3]
    assert again.scored[0].next_tokens == [5]


def test_the_last_prompt_token_predicts_no_prompt_token():
    sequence = make("a", [1], num_prompt=1, prompt_logprobs=0)
    assert pack_step([ScheduledSequence(sequence, 1, samples=True)]).scored == []


def test_guesses_follow_the_token_before_them_and_every_one_is_sampled():
    prompt = make("a", [10, 11, 12], num_prompt=3)
    decode = make("b", [20, 21, 22], num_prompt=2, num_computed=2)
    step = pack_step(
        [
            ScheduledSequence(prompt, 3, samples=True),
            ScheduledSequence(decode, 1, samples=True, draft=(23, 24)),
        ]
    )
    assert step.token_ids == [10, 11, 12, 22, 23, 24]
    assert step.position_ids == [0, 1, 2, 2, 3, 4]
    assert step.num_tokens == [3, 3]
    assert step.sampling_rows == [2, 3, 4, 5]
    assert [s.token_ids for s in step.sampling] == [
        prompt.token_ids,
        [20, 21, 22],
        [20, 21, 22, 23],
        [20, 21, 22, 23, 24],
    ]
    assert [s.num_generated for s in step.sampling] == [0, 1, 2, 3]
    assert decode.token_ids == [20, 21, 22]
