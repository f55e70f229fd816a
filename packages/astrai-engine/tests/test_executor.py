"""Which steps leave the logits unwritten, and that nothing else changes by it."""

from types import SimpleNamespace

import pytest
import torch

from astrai_engine.constraint import TokenMasks
from astrai_engine.executor import GreedyModel, ModelExecutor
from astrai_engine.loading import load_model, resolve_source
from astrai_engine.parallel.leading_model import LeadingModel
from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import Sampler
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence
from astrai_engine.stopwatch import Stopwatch
from astrai_engine.workspace import InferenceWorkspace
from astrai_kvcache import PagePool

CPU = torch.device("cpu")
VOCAB = 12
GREEDY = {"temperature": 0.0}


class TableModel:
    """A model whose logits after a token are a row of a table; counts how it is asked."""

    def __init__(self, table):
        self.table = table
        self.calls = []

    def forward(self, input_ids, position_ids, cache, backend, *, logit_rows=None):
        self.calls.append("forward")
        return self._logits(input_ids, logit_rows)

    def likeliest(self, input_ids, position_ids, cache, backend, *, logit_rows=None):
        self.calls.append("likeliest")
        best = self._logits(input_ids, logit_rows).max(-1)
        return best.values.tolist(), best.indices.tolist()

    def _logits(self, input_ids, logit_rows):
        logits = self.table[input_ids]
        return logits if logit_rows is None else logits[logit_rows]


class PlainModel:
    """The same without the shortcut."""

    def __init__(self, model):
        self.forward = model.forward


class OneMask:
    """Lets a sequence with a constraint have one token alone."""

    def start(self, constraints):
        if not any(constraints):
            return None
        forbidden = torch.zeros(len(constraints), VOCAB, dtype=torch.bool)
        for row, constraint in enumerate(constraints):
            forbidden[row] = constraint is not None
            forbidden[row, constraint or 0] = False
        return SimpleNamespace(result=lambda: forbidden)

    def close(self):
        pass


@pytest.fixture
def table():
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def executor_of():
    made = []

    def make(model, masks=None):
        pool = PagePool(1, 1, 2, 4, 32, CPU, torch.float32, page_size=4, n_tokens=64)
        workspace = InferenceWorkspace(4, 64, 32, CPU)
        masks = masks or TokenMasks(VOCAB)
        executor = ModelExecutor(model, pool, workspace, Sampler(frozenset()), masks)
        made.append(executor)
        return executor, pool

    yield make
    for executor in made:
        executor.close()


def sequence(name, length=3, **parameters):
    ids = [(ord(name) + i) % VOCAB for i in range(length)]
    return Sequence(
        task_id=name,
        request_id=name,
        request=GenerationRequest(prompt_token_ids=ids, **parameters),
        index=0,
        token_ids=ids,
        num_prompt_tokens=length,
        max_tokens=20,
        arrival=0,
        seed=3,
    )


def run(executor, pool, sequences, num_steps=3):
    """The prompts, then tokens one by one."""
    outcomes = []
    for _ in range(num_steps):
        batch = []
        for each in sequences:
            if each.num_computed:
                assert pool.task_extend(each.task_id, len(each.token_ids) - 1)
            else:
                assert pool.task_alloc(each.task_id, each.token_ids)
            count = len(each.token_ids) - each.num_computed
            batch.append(ScheduledSequence(each, count, samples=True))
        sampled = [tokens[0] for tokens in executor.execute(batch, Stopwatch())]
        for each, token in zip(sequences, sampled, strict=True):
            each.num_computed = len(each.token_ids)
            each.token_ids.append(max(token.token_id, 0))
        outcomes.append(sampled)
    return outcomes


def test_a_greedy_batch_gets_its_tokens_without_logits(table, executor_of):
    model = TableModel(table)
    names = "abc"
    outcomes = run(*executor_of(model), [sequence(name, **GREEDY) for name in names])
    assert model.calls == ["likeliest"] * 3
    plain = executor_of(PlainModel(model))
    assert run(*plain, [sequence(name, **GREEDY) for name in names]) == outcomes
    assert model.calls[3:] == ["forward"] * 3


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1.0},
        {**GREEDY, "logprobs": True},
        {**GREEDY, "min_tokens": 1},
        {**GREEDY, "repetition_penalty": 1.5},
        {**GREEDY, "logit_bias": {1: 5.0}},
        {**GREEDY, "frequency_penalty": 0.5},
    ],
)
def test_one_row_that_needs_its_logits_has_all_of_them_written(table, executor_of, parameters):
    model = TableModel(table)
    run(*executor_of(model), [sequence("a", **GREEDY), sequence("b", **parameters)])
    assert model.calls == ["forward"] * 3


def test_a_scored_prompt_needs_its_logits(table, executor_of):
    model, scored = TableModel(table), sequence("a", **GREEDY, prompt_logprobs=1)
    run(*executor_of(model), [scored])
    assert model.calls == ["forward", "likeliest", "likeliest"]
    assert len(scored.prompt_logprobs) == 2


def test_a_row_with_a_grammar_has_the_logits_written(table, executor_of):
    model, masked = TableModel(table), sequence("b", **GREEDY)
    executor, pool = executor_of(model, OneMask())
    masked.constraint = 7
    (outcome,) = run(executor, pool, [sequence("a", **GREEDY), masked], num_steps=1)
    assert outcome[1].token_id == 7
    masked.constraint = None
    run(executor, pool, [masked], num_steps=1)
    assert model.calls == ["forward", "likeliest"]


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_guesses_are_checked_without_logits(table, executor_of, num_right):
    model = TableModel(table)
    plain = run(*executor_of(PlainModel(model)), [sequence("a", **GREEDY)], num_steps=5)
    text = [tokens[0].token_id for tokens in plain]
    executor, pool = executor_of(model)
    guessed = sequence("a", **GREEDY)
    run(executor, pool, [guessed], num_steps=1)
    draft = [*text[1 : 1 + num_right], (text[1 + num_right] + 1) % VOCAB]
    assert pool.task_extend("a", len(guessed.token_ids) - 1 + len(draft))
    model.calls.clear()
    batch = [ScheduledSequence(guessed, 1, samples=True, draft=tuple(draft))]
    (tokens,) = executor.execute(batch, Stopwatch())
    assert [token.token_id for token in tokens] == text[1 : 2 + num_right]
    assert model.calls == ["likeliest"]


def test_a_chunk_that_draws_nothing_leaves_the_batch_greedy(table, executor_of):
    model = TableModel(table)
    executor, pool = executor_of(model)
    first, second = sequence("a", **GREEDY), sequence("b", length=6, temperature=0.5)
    run(executor, pool, [first], num_steps=1)
    assert pool.task_extend("a", len(first.token_ids) - 1)
    assert pool.task_alloc("b", second.token_ids)
    batch = [ScheduledSequence(first, 1, samples=True), ScheduledSequence(second, 4, samples=False)]
    ((token,),) = executor.execute(batch, Stopwatch())
    assert token.token_id == int(table[first.token_ids[-1]].argmax())
    assert model.calls == ["likeliest"] * 2
    alone = [ScheduledSequence(second, 4, samples=False)]
    assert executor.execute(alone, Stopwatch()) == []
    assert model.calls[2:] == ["forward"]


def test_ranks_run_together_give_logits(table):
    """What the leading one alone ran would leave the others waiting."""
    assert not isinstance(LeadingModel(TableModel(table), None, 4), GreedyModel)


def test_steps_with_logits_and_without_take_turns(table, executor_of):
    model = TableModel(table)
    executor, pool = executor_of(model)
    drawn = sequence("a", temperature=0.7, top_k=4)
    greedy = sequence("b", **GREEDY)
    mixed = [run(executor, pool, [each], 1)[0][0] for _ in range(3) for each in (greedy, drawn)]
    assert model.calls == ["likeliest", "forward"] * 3
    for each, found in (("b", mixed[::2]), ("a", mixed[1::2])):
        parameters = GREEDY if each == "b" else {"temperature": 0.7, "top_k": 4}
        alone = run(*executor_of(PlainModel(model)), [sequence(each, **parameters)])
        assert [tokens[0] for tokens in alone] == found


def test_nan_fails_its_row_alone(table, executor_of):
    table[ord("a") % VOCAB + 2, 5] = torch.nan
    table[ord("b") % VOCAB + 2] = -torch.inf
    sequences = [sequence(name, **GREEDY) for name in "abf"]
    (outcome,) = run(*executor_of(TableModel(table)), sequences, num_steps=1)
    assert [bool(token.error) for token in outcome] == [True, True, False]
    assert "NaN" in outcome[0].error
    assert "minus infinity" in outcome[1].error


def test_the_engine_of_a_checkpoint_can_do_it(tiny_checkpoint):
    source = resolve_source(str(tiny_checkpoint))
    model = load_model(source, device=CPU, dtype=torch.float32, precision="none").model
    assert isinstance(model, GreedyModel)
