"""Recording and replaying decode steps, on the CPU: a replay runs the function again, and what it
reads from outside must lie where it lay while it was recorded."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from astrai_engine.constraint import TokenMasks
from astrai_engine.decode_graphs import CudaRecorder, DecodeGraphs, padded_sizes
from astrai_engine.executor import ModelExecutor
from astrai_engine.loading import load_model, resolve_source
from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import Sampler
from astrai_engine.scheduler import ScheduledSequence
from astrai_engine.sequence import Sequence
from astrai_engine.stopwatch import Stopwatch
from astrai_engine.workspace import InferenceWorkspace
from astrai_kernels import ATTN_BACKEND, AttentionShape, BackendChoice, TorchNativeBackend
from astrai_kvcache import PagePool

CPU = torch.device("cpu")
MAX_BATCH, MAX_LEN, PAGE = 5, 48, 4


class ExternalReads(TorchDispatchMode):
    """The addresses of memory that a function reads or writes and did not make."""

    def __init__(self):
        super().__init__()
        self.addresses, self._kept = set(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = {tensor.untyped_storage().data_ptr() for tensor in self._kept}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in made:
                self.addresses.add(x.data_ptr())
        result = function(*args, **(kwargs or {}))
        known = made | self.addresses
        self._kept += [
            x
            for x in tree_leaves(result)
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known
        ]
        return result


class FakeRecorder:
    """Records by remembering the function."""

    def __init__(self):
        self.replays = 0

    def record(self, function):
        function()
        with ExternalReads() as reads:
            output = function()

        def replay():
            self.replays += 1
            with ExternalReads() as again:
                result = function()
            assert again.addresses <= reads.addresses
            output.copy_(result)

        return SimpleNamespace(output=output, replay=replay)


class Unplanned(TorchNativeBackend):
    """Works on the numbers that the buffers hold when it is called, as kernels do."""

    @staticmethod
    def _plans_on_device(device):
        return True

    def attend(self, *arguments, **options):
        self._planned = None
        return super().attend(*arguments, **options)


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    source = resolve_source(str(tiny_checkpoint))
    return load_model(source, device=CPU, dtype=torch.float32, precision="none").model


def make_executor(model, backend=None):
    config, device = model.config, model.device
    pool = PagePool(
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        MAX_BATCH,
        MAX_LEN,
        device,
        model.dtype,
        page_size=PAGE,
        n_tokens=MAX_BATCH * MAX_LEN,
        prefix_cache=False,
    )
    workspace = InferenceWorkspace(MAX_BATCH, MAX_BATCH * MAX_LEN, MAX_LEN, device)
    executor = ModelExecutor(
        model, pool, workspace, Sampler(frozenset()), TokenMasks(config.vocab_size)
    )
    if backend is not None:
        executor._backend = lambda choice: backend
    return executor, pool


@pytest.fixture
def eager(model):
    executor, pool = make_executor(model, Unplanned())
    yield executor, pool
    executor.close()


@pytest.fixture
def graphed(model):
    executor, pool = make_executor(model, Unplanned())
    recorder = FakeRecorder()
    executor.record_decode(recorder)
    yield executor, pool, recorder
    executor.close()


def make(name, length, **parameters):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, 200, (length,), generator=generator).tolist()
    return Sequence(
        task_id=name,
        request_id=name,
        request=GenerationRequest(prompt_token_ids=ids, temperature=0.0, **parameters),
        index=0,
        token_ids=ids,
        num_prompt_tokens=length,
        max_tokens=40,
        arrival=0,
        seed=3,
    )


def run(executor, pool, sequences):
    """One step of each sequence: its prompt, then a token; gives the new tokens."""
    batch = []
    for sequence in sequences:
        count = len(sequence.token_ids) - sequence.num_computed
        if sequence.num_computed:
            assert pool.task_extend(sequence.task_id, len(sequence.token_ids) - 1)
        else:
            assert pool.task_alloc(sequence.task_id, sequence.token_ids)
        batch.append(ScheduledSequence(sequence, count, samples=True))
    sampled = executor.execute(batch, Stopwatch())
    for sequence, (token,) in zip(sequences, sampled, strict=True):
        assert token.error is None
        sequence.num_computed = len(sequence.token_ids)
        sequence.token_ids.append(token.token_id)
    return [token.token_id for (token,) in sampled]


def generate(executor, pool):
    """Batches that grow, shrink, fill the context and change their members."""
    a, b, c = make("a", MAX_LEN - 3), make("b", 5), make("c", 17)
    first = ([a], [a, b, c], [a, b, c], [b, c], [c, b], [b])
    tokens = [run(executor, pool, members) for members in first]
    pool.task_free("a")
    more = [make(name, 3 + n) for n, name in enumerate("def")]
    then = (more, [b, *more, c], [b, *more, c], more)
    return tokens + [run(executor, pool, members) for members in then]


def test_graphs_give_the_tokens_of_steps_run_one_by_one(eager, graphed):
    """B196: whatever earlier, longer or larger steps left in the buffers."""
    executor, pool, recorder = graphed
    assert generate(executor, pool) == generate(*eager)
    assert recorder.replays == 7


@pytest.mark.cuda
def test_on_a_gpu_graphs_give_the_tokens_of_steps_run_one_by_one(tiny_checkpoint, tmp_path):
    """Batches of exactly a graph's size, so that matrix products are of the same shapes."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    config = LlamaConfig.from_pretrained(folder)
    config.head_dim = 64  # which kernels serve
    LlamaForCausalLM(config).save_pretrained(folder)
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    model = load_model(
        resolve_source(str(folder)), device=device, dtype=dtype, precision="none"
    ).model
    shape = AttentionShape(
        device=device,
        dtype=dtype,
        kv_dtype=dtype,
        num_heads=6,
        num_kv_heads=2,
        head_dim=64,
        max_batch_size=MAX_BATCH,
    )
    tokens = []
    for is_recorded in (False, True):
        executor, pool = make_executor(model)
        assert executor.load_kernels(shape) is None
        if is_recorded:
            executor.record_decode(CudaRecorder(device))
        members = [make(name, 3 + 5 * n) for n, name in enumerate("abcd")]
        steps = (members, members, members[:2], members[1:2], members, members[2:])
        tokens.append([run(executor, pool, step) for step in steps])
        executor.close()
    assert tokens[0] == tokens[1]


def test_only_decode_steps_of_the_default_backend_are_replayed(graphed):
    executor, pool, recorder = graphed
    plain, scoring = make("a", 4), make("b", 4, logprobs=True, prompt_logprobs=0)
    other = make("c", 4)
    other.backend = BackendChoice(ATTN_BACKEND.TORCH_NATIVE)
    run(executor, pool, [plain, scoring, other])
    assert recorder.replays == 0
    run(executor, pool, [plain, scoring, other])  # the other backend's step runs by itself
    assert recorder.replays == 1


def test_padding_rows_write_nothing_and_are_read_by_nobody(graphed):
    """B197, B198: a batch of 3 runs in a graph of 4."""
    executor, pool, recorder = graphed
    sequences = [make(name, 5 + n) for n, name in enumerate("abc")]
    run(executor, pool, sequences)
    cache = pool.bind_tasks([s.task_id for s in sequences], executor._workspace)
    used = [
        cache.req_to_token[row, :length].long()
        for row, length in zip(cache.req_pool_indices, cache.seq_lens, strict=True)
    ]
    written = torch.cat(used)
    for buffer in (cache.k_buffer, cache.v_buffer):
        others = torch.ones(buffer.shape[1], dtype=torch.bool)
        others[written] = False
        buffer[:, others] = float("nan")
    before = cache.k_buffer.clone()
    run(executor, pool, sequences)
    assert recorder.replays == 1
    changed = (cache.k_buffer != before) & ~(cache.k_buffer.isnan() & before.isnan())
    assert len(changed.any(-1).any(-1).any(0).nonzero()) == len(sequences)


def test_a_step_that_advances_the_last_one_is_not_bound_anew(graphed, monkeypatch):
    """Padding leaves the binder's count of writes alone."""
    executor, pool, _ = graphed
    sequences = [make(name, 5) for name in "abc"]
    for _ in range(2):
        run(executor, pool, sequences)
    filled = []
    fill = pool._binder._fill
    monkeypatch.setattr(pool._binder, "_fill", lambda *a: filled.append(a) or fill(*a))
    run(executor, pool, sequences)
    assert filled == []


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]), (33, [1, 2, 4, 8, 16, 32, 33])],
)
def test_batches_are_padded_to_powers_of_two_or_the_largest(largest, sizes):
    assert padded_sizes(largest) == sizes


def test_the_smallest_graph_that_holds_a_batch_is_replayed():
    sizes = []

    class Recorder:
        def record(self, function):
            output = function()
            return SimpleNamespace(output=output, replay=lambda: sizes.append(len(output)))

    workspace = InferenceWorkspace(6, 6, 8, CPU)
    pool = PagePool(1, 1, 2, 6, 8, CPU, torch.float32, page_size=4, n_tokens=48)
    graphs = DecodeGraphs(lambda ids, positions, cache: ids.float(), workspace, Recorder(), 8)
    graphs.record(pool.bind_tasks([], workspace))
    assert [len(graphs.run(batch)) for batch in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    assert sizes == [1, 2, 4, 4, 6, 6]
