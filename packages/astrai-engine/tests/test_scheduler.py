import random
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_engine.chunk_budget import ChunkBudget
from astrai_engine.request import GenerationRequest
from astrai_engine.scheduler import ScheduledSequence, Scheduler
from astrai_engine.sequence import AGEING_SECONDS, Sequence
from astrai_engine.speculation import FREE, Speculation
from astrai_engine.testing import CountingCache


def make_sequence(
    name, tokens, *, arrival=0, priority=0, max_tokens=100, salt=None, submitted_at=0.0, leader=None
):
    ids = list(tokens)
    request = GenerationRequest(prompt_token_ids=ids, priority=priority, cache_salt=salt)
    return Sequence(
        task_id=name,
        request_id=name,
        request=request,
        index=0,
        token_ids=ids,
        num_prompt_tokens=len(ids),
        max_tokens=max_tokens,
        arrival=arrival,
        seed=0,
        submitted_at=submitted_at,
        leader=leader,
    )


def make_scheduler(
    *, num_pages=100, page_size=4, max_batch_size=4, max_step_tokens=16, speculates=False
):
    return Scheduler(
        CountingCache(num_pages, page_size),
        max_batch_size=max_batch_size,
        max_step_tokens=max_step_tokens,
        speculation=Speculation(FREE) if speculates else None,
    )


def step(scheduler, token=7):
    """One step with a scripted token; gives what ran."""
    batch = scheduler.schedule()
    for item in batch:
        if item.samples:
            item.sequence.token_ids.append(token)
        scheduler.commit(item)
    return [(item.sequence.task_id, item.num_tokens, item.samples) for item in batch]


def test_a_chunk_leaves_no_single_token_behind():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(17)))
    assert [step(scheduler) for _ in range(2)] == [[("a", 15, False)], [("a", 2, True)]]
    scheduler.add(make_sequence("b", range(100, 133)))
    chunks = [num for _ in range(4) for name, num, _ in step(scheduler) if name == "b"]
    assert chunks == [15, 15, 3, 1]  # one decoding token leaves room for fifteen; then b decodes


def test_nothing_to_do_is_an_empty_step():
    scheduler = make_scheduler()
    assert scheduler.schedule() == []
    assert not scheduler.has_work


def test_a_prompt_runs_whole_and_then_decodes_token_by_token():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(5)))
    assert step(scheduler) == [("a", 5, True)]
    assert step(scheduler) == [("a", 1, True)]


def test_different_prompt_lengths_share_one_step():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(3), arrival=0))
    scheduler.add(make_sequence("b", range(100, 107), arrival=1))
    assert step(scheduler) == [("a", 3, True), ("b", 7, True)]


def test_a_long_prompt_is_chunked_and_never_stalls_decoding_ones():
    """B050, B051: the gap of a stream is one chunk, and only the last chunk gives a token."""
    scheduler = make_scheduler(max_step_tokens=8)
    scheduler.add(make_sequence("stream", range(4), arrival=0))
    step(scheduler)
    scheduler.add(make_sequence("long", range(1000, 1030), arrival=1))
    steps = [step(scheduler) for _ in range(6)]
    assert all(("stream", 1, True) in s for s in steps)
    long_steps = [(n, samples) for s in steps for name, n, samples in s if name == "long"]
    assert long_steps == [(7, False)] * 4 + [(2, True), (1, True)]


def test_no_more_than_the_budget_runs_in_a_step():
    scheduler = make_scheduler(max_step_tokens=10, max_batch_size=8)
    for i in range(8):
        scheduler.add(make_sequence(str(i), range(100 * i, 100 * i + 7), arrival=i))
    assert sum(n for _, n, _ in step(scheduler)) == 10
    assert step(scheduler)[0] == ("0", 1, True)


def test_the_batch_size_is_a_limit():
    scheduler = make_scheduler(max_batch_size=2)
    for i in range(3):
        scheduler.add(make_sequence(str(i), [i], arrival=i))
    assert [name for name, _, _ in step(scheduler)] == ["0", "1"]
    scheduler.remove(scheduler.running[0])
    assert [name for name, _, _ in step(scheduler)] == ["1", "2"]


def test_a_smaller_priority_number_goes_first():
    scheduler = make_scheduler(max_batch_size=1)
    scheduler.add(make_sequence("late", [1], arrival=0, priority=1))
    scheduler.add(make_sequence("urgent", [2], arrival=1, priority=0))
    assert step(scheduler) == [("urgent", 1, True)]


def test_a_low_priority_gives_way_for_a_while_and_never_starves():
    scheduler = make_scheduler(max_batch_size=1)
    scheduler.add(make_sequence("patient", [1], arrival=0, priority=1, submitted_at=0.0))
    scheduler.add(make_sequence("soon", [2], arrival=1, submitted_at=AGEING_SECONDS - 1))
    scheduler.add(make_sequence("later", [3], arrival=2, submitted_at=AGEING_SECONDS + 1))
    assert [s.task_id for s in scheduler.waiting] == ["soon", "patient", "later"]


def test_choices_of_one_request_wait_for_the_first_and_share_its_pages():
    scheduler = make_scheduler(max_step_tokens=8)
    first = make_sequence("first", range(14), arrival=0)
    second = make_sequence("second", range(14), arrival=0, leader=first)
    other = make_sequence("other", [99], arrival=1)
    for sequence in (first, second, other):
        scheduler.add(sequence)
    assert step(scheduler) == [("first", 8, False)]
    assert step(scheduler) == [("first", 6, True), ("other", 1, True)]
    assert step(scheduler) == [("first", 1, True), ("other", 1, True), ("second", 2, True)]
    assert second.num_cached == 12


def test_choices_go_on_without_a_first_one_that_failed():
    scheduler = make_scheduler()
    first = make_sequence("first", range(6))
    second = make_sequence("second", range(6), leader=first)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.remove(first)
    assert step(scheduler) == [("second", 6, True)]


def test_a_cached_prefix_is_not_computed_again():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(10), arrival=0))
    step(scheduler)
    scheduler.add(again := make_sequence("b", range(10), arrival=1))
    assert ("b", 2, True) in step(scheduler)
    assert again.num_cached == 8


def test_no_prompt_is_left_with_one_token_to_compute():
    """Alone it would run as a decoding row, and round differently from its first run."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(9), arrival=0))
    step(scheduler)
    scheduler.add(again := make_sequence("b", range(9), arrival=1))
    assert ("b", 5, True) in step(scheduler)
    assert again.num_cached == 4


def test_the_last_prompt_token_is_always_computed():
    """B019: a prompt that is an exact multiple of the page."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(8), arrival=0))
    step(scheduler)
    scheduler.add(again := make_sequence("b", range(8), arrival=1))
    assert ("b", 4, True) in step(scheduler)
    assert again.num_cached == 4


def test_salts_do_not_share_prefixes():
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", range(9), arrival=0, salt="x"))
    step(scheduler)
    scheduler.add(make_sequence("b", range(9), arrival=1, salt="y"))
    assert ("b", 9, True) in step(scheduler)


def test_the_newest_is_preempted_and_resumes_before_newer_ones():
    """B048: the victim of a full pool comes back first, with its tokens kept."""
    scheduler = make_scheduler(num_pages=4, page_size=4, max_batch_size=3)
    old, new = make_sequence("old", range(6), arrival=0), make_sequence("new", [50], arrival=1)
    scheduler.add(old)
    scheduler.add(new)
    step(scheduler)
    newest = make_sequence("newest", [90], arrival=2)
    scheduler.add(newest)
    while scheduler.num_preemptions == 0:
        step(scheduler)
    assert scheduler.running == [old]
    assert scheduler.waiting == [new, newest]
    kept = list(new.token_ids)
    scheduler.remove(old)
    assert step(scheduler)[0][0] == "new"
    assert new.token_ids[: len(kept)] == kept


def test_two_growing_requests_never_deadlock():
    """B031: each grows to six pages of a pool of eight; both finish."""
    scheduler = make_scheduler(num_pages=8, page_size=4)
    for i in range(2):
        scheduler.add(make_sequence(str(i), [i], arrival=i))
    for _ in range(100):
        step(scheduler)
        for sequence in [s for s in scheduler.running if len(s.token_ids) >= 24]:
            scheduler.remove(sequence)
    assert not scheduler.has_work
    assert scheduler.num_preemptions > 0
    assert scheduler.cache.lengths == {}


def test_removing_a_sequence_in_the_middle_of_its_prompt_frees_its_pages():
    """B038: an abort between two chunks."""
    scheduler = make_scheduler(max_step_tokens=8)
    scheduler.add(make_sequence("a", range(30)))
    step(scheduler)
    scheduler.remove(scheduler.running[0])
    assert not scheduler.has_work
    assert scheduler.cache.lengths == {}


def test_removing_a_waiting_or_unknown_sequence():
    scheduler = make_scheduler()
    scheduler.add(waiting := make_sequence("a", [1]))
    scheduler.remove(waiting)
    scheduler.remove(waiting)
    assert not scheduler.has_work


def test_a_batch_never_holds_a_preempted_sequence():
    """The victim decodes, so it was scheduled already when a prompt takes its pages."""
    scheduler = make_scheduler(num_pages=6, page_size=4, max_step_tokens=4)
    decoding = make_sequence("decoding", range(50, 54), arrival=0, priority=1)
    prompt = make_sequence("prompt", range(17), arrival=1, priority=0)
    scheduler.add(decoding)
    step(scheduler)
    scheduler.add(prompt)
    steps = [step(scheduler) for _ in range(6)]
    assert scheduler.num_preemptions == 1
    preempting = next(s for s in steps[1:] if [name for name, _, _ in s] == ["prompt"])
    assert preempting[0][1] == 3  # the victim's token of the budget was already given to it
    assert scheduler.waiting == [decoding]


REPEATING = [*range(10), 0, 1, 2]


def decoding(scheduler, *names, prompt=REPEATING, **options):
    """Sequences one step from their next token, which text before them foretells."""
    for arrival, name in enumerate(names):
        scheduler.add(make_sequence(name, prompt, arrival=arrival, **options))
    while any(not s.num_generated for s in [*scheduler.waiting, *scheduler.running]):
        step(scheduler, token=3)


def drafts(scheduler):
    return {item.sequence.task_id: list(item.draft) for item in scheduler.schedule()}


def test_guesses_run_behind_the_token_they_follow_and_have_slots():
    scheduler = make_scheduler(speculates=True)
    decoding(scheduler, "a")
    (item,) = scheduler.schedule()
    assert (item.num_tokens, item.samples, item.is_decode) == (1, True, True)
    assert item.draft == (4, 5, 6, 7, 8, 9, 0, 1, 2, 3)
    assert scheduler.cache.lengths["a"] == len(REPEATING) + 1 + 10


def test_only_what_was_guessed_right_counts_as_computed():
    scheduler = make_scheduler(speculates=True)
    decoding(scheduler, "a")
    (item,) = scheduler.schedule()
    item.sequence.token_ids += [4, 5, 77]
    scheduler.commit(item, 2)
    assert item.sequence.num_computed == len(item.sequence.token_ids) - 1
    assert scheduler.cache.prefix_len([*REPEATING, 3, 4, 5, 77, 1]) == 16
    assert scheduler.cache.prefix_len([*REPEATING, 3, 4, 5, 6, 7, 8, 9, 0]) == 16
    scheduler.schedule()
    assert scheduler.cache.lengths["a"] == len(item.sequence.token_ids)


def test_guesses_get_what_the_budget_leaves():
    scheduler = make_scheduler(speculates=True, max_step_tokens=16)
    decoding(scheduler, "a", "b")
    scheduler.add(make_sequence("c", [50] * 10, arrival=9))
    ran = drafts(scheduler)
    assert sum(map(len, ran.values())) == 16 - 12
    assert ran["c"] == []


def test_nothing_is_guessed_while_prompts_run_or_wait_for_their_share_of_time():
    """Steps with guesses teach nothing of time, and the budget waits for one that does."""
    scheduler = make_scheduler(speculates=True, max_batch_size=3, max_step_tokens=8)
    scheduler.chunk_budget = ChunkBudget(8)
    decoding(scheduler, "a", "b")
    assert any(drafts(scheduler).values())
    scheduler.add(make_sequence("c", range(50, 60), arrival=9))
    assert drafts(scheduler) == {"a": [], "b": [], "c": []}  # six tokens of ten run
    scheduler.add(make_sequence("d", range(70, 80), arrival=10))
    assert drafts(scheduler) == {"a": [], "b": [], "c": []}


def test_guesses_take_no_page_that_a_running_sequence_may_need():
    """Four pages each for two sequences, and two more: one for each to grow."""
    scheduler = make_scheduler(speculates=True, num_pages=10)
    decoding(scheduler, "a", "b")
    assert drafts(scheduler) == {"a": [], "b": []}
    assert scheduler.num_preemptions == 0


def test_a_chunk_of_one_token_that_ends_no_text_has_no_guesses():
    """A preempted sequence that computes its tokens again."""
    scheduler = make_scheduler(speculates=True)
    decoding(scheduler, "a")
    (sequence,) = scheduler.running
    sequence.num_computed = 5
    scheduler.max_step_tokens = 1
    (item,) = scheduler.schedule()
    assert (item.num_tokens, item.samples, item.draft) == (1, False, ())


def make_text(period, wrong):
    """The text of a length, that repeats itself but for its wrong places; None never does."""

    def text(length):
        if period is None:
            return list(range(length))
        return [99 if place in wrong else place % period for place in range(length)]

    return text


def go_on(item, text):
    """Add what the text has after the sequence; gives the number of its right guesses."""
    length = len(item.sequence.token_ids)
    expected = text(length + len(item.draft) + 1)[length:]
    pairs = zip(item.draft, expected, strict=False)
    num_right = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    item.sequence.token_ids += expected[: num_right + 1]
    return num_right


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    outputs=st.lists(st.integers(1, 12), min_size=8, max_size=8),
    priorities=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    num_pages=st.integers(8, 14),
    budget=st.integers(1, 24),
    batch_size=st.integers(1, 4),
    period=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_everything_finishes_with_its_own_tokens(
    prompts, outputs, priorities, num_pages, budget, batch_size, period, seed
):
    """Whatever the pool, the budget and the aborts: no deadlock, no lost token, no lost page.

    With a period, every text repeats itself, now and then wrongly, and guesses of it are checked.
    """
    rng = random.Random(seed)
    scheduler = make_scheduler(
        num_pages=num_pages,
        page_size=4,
        max_batch_size=batch_size,
        max_step_tokens=budget,
        speculates=period is not None,
    )
    text = make_text(period, wrong={rng.randrange(32) for _ in range(3)})
    sequences = [
        make_sequence(
            str(i), text(n), arrival=i, priority=priorities[i], max_tokens=outputs[i], salt=i
        )
        for i, n in enumerate(prompts)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    goal = {s.task_id: s.num_prompt_tokens + outputs[i] for i, s in enumerate(sequences)}
    aborted = set()
    for _ in range(2000):
        if not scheduler.has_work:
            break
        batch: list[ScheduledSequence] = scheduler.schedule()
        assert batch, "work is left but nothing runs"
        num_tokens = sum(item.num_tokens + len(item.draft) for item in batch)
        assert num_tokens <= scheduler.max_step_tokens
        for item in batch:
            sequence = item.sequence
            assert item.num_tokens > 0
            if not item.samples:
                scheduler.commit(item)
                continue
            scheduler.commit(item, go_on(item, text))
            assert sequence.num_uncomputed == 1
            if len(sequence.token_ids) == goal[sequence.task_id]:
                scheduler.remove(sequence)
        if rng.random() < 0.05 and scheduler.running:
            victim = rng.choice(scheduler.running)
            aborted.add(victim.task_id)
            scheduler.remove(victim)
    assert not scheduler.has_work
    assert scheduler.cache.lengths == {}
    for sequence in sequences:
        if sequence.task_id not in aborted:
            assert len(sequence.token_ids) == goal[sequence.task_id]
            assert sequence.token_ids == text(goal[sequence.task_id])
