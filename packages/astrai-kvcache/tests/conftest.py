"""A pool to play with, and a stand-in for a model whose K/V tell what they were computed from."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import pytest
import torch

from astrai_kvcache import BindWorkspace, KVCache, PagePool


class FakeModel:
    """Writes, as K/V of a token, a number that is unique to its salt and whole prefix.

    So whoever reads a wrong slot, or K/V computed after another prefix, sees a wrong number.
    """

    def __init__(self, pool: PagePool, max_tokens: int = 256) -> None:
        self.pool = pool
        self.workspace = BindWorkspace(pool.max_batch_size, max_tokens, pool.device)
        self._numbers: dict[Hashable, int] = {}
        pool.storage.k_buffer.fill_(torch.nan)
        pool.storage.v_buffer.fill_(torch.nan)

    def expected(self, tokens: Sequence[int], salt: Hashable = None) -> list[float]:
        """The numbers of all positions of a sequence."""
        keys = [(salt, tuple(tokens[: i + 1])) for i in range(len(tokens))]
        return [float(self._numbers.setdefault(key, len(self._numbers) + 1)) for key in keys]

    def compute(
        self,
        sequences: Mapping[str, Sequence[int]],
        q_lens: Sequence[int] | None = None,
        salts: Mapping[str, Hashable] | None = None,
    ) -> KVCache:
        """One step: compute the last ``q_len`` tokens of each sequence, one each by default."""
        cache = self.pool.bind_tasks(list(sequences), self.workspace, q_lens=q_lens)
        numbers: list[float] = []
        for i, (task_id, tokens) in enumerate(sequences.items()):
            start = len(tokens) - (1 if q_lens is None else q_lens[i])
            numbers += self.expected(tokens, salts and salts.get(task_id))[start:]
        new = torch.tensor(numbers, dtype=torch.float64).view(*cache.out_cache_loc.shape, 1, 1)
        cache.k_buffer[:, cache.out_cache_loc] = new
        cache.v_buffer[:, cache.out_cache_loc] = -new
        return cache

    def read(self, task_id: str, count: int | None = None) -> list[float]:
        """What attention would read for the first ``count`` positions of a task, all by default."""
        cache = self.pool.bind_tasks([task_id], BindWorkspace(1, 1, self.pool.device), q_lens=[0])
        slots = cache.req_to_token[cache.req_pool_indices[0], : cache.max_len][:count]
        keys, values = cache.k_buffer[:, slots], cache.v_buffer[:, slots]
        assert torch.equal(keys, -values)
        assert torch.equal(keys[0], keys[-1])
        numbers: list[float] = keys[0].flatten().tolist()
        return numbers

    def run(self, task_id: str, tokens: Sequence[int], salt: Hashable = None) -> int:
        """Admit a prompt, compute what is not cached, record it; returns the cached tokens."""
        assert self.pool.task_alloc(task_id, tokens, salt=salt)
        cached = self.pool.task_cached(task_id)
        self.compute({task_id: tokens}, [len(tokens) - cached], {task_id: salt})
        assert self.read(task_id) == self.expected(tokens, salt)
        self.pool.task_record_hashes(task_id, tokens)
        assert self.read(task_id) == self.expected(tokens, salt)
        return cached


@pytest.fixture
def far_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools made from here on write as to a device, whose memory is not the host's."""
    monkeypatch.setattr("astrai_kvcache.req_to_token.host_view", lambda table: None)


@pytest.fixture
def make_pool() -> Callable[..., PagePool]:
    def make(**changes: object) -> PagePool:
        settings: dict[str, object] = {
            "n_layers": 2,
            "n_kv_heads": 1,
            "head_dim": 1,
            "max_batch_size": 4,
            "max_seq_len": 32,
            "device": torch.device("cpu"),
            "dtype": torch.float64,
            "page_size": 4,
            "n_tokens": 64,
        }
        return PagePool(**{**settings, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_model() -> type[FakeModel]:
    return FakeModel
