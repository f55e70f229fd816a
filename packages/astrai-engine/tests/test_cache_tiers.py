"""The second tier of the prefix cache, in engines that start and stop."""

import errno
from contextlib import closing
from pathlib import Path

import pytest

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.cache_tiers import CacheTiers
from astrai_engine.errors import ConfigurationError
from astrai_kvcache.disk_tier import DiskTier

PROMPT = "a prompt of some pages, long enough to be worth it"
BIG = 2**24


def open_engine(checkpoint, **settings):
    return InferenceEngine(
        config=EngineConfig(
            model=str(checkpoint), page_size=4, max_batch_size=2, speculation="off", **settings
        )
    )


def ask(engine, prompt=PROMPT, **parameters):
    """The text of an answer, and how many tokens of the prompt were there already."""
    request = GenerationRequest(
        prompt=prompt, max_tokens=4, temperature=0.0, ignore_eos=True, **parameters
    )
    *deltas, finished = engine.submit(request)
    return "".join(delta.text for delta in deltas), finished.usage.cached_tokens


def test_a_restart_finds_what_was_computed(tiny_checkpoint, tmp_path):
    settings = {"disk_cache_bytes": BIG, "cache_dir": str(tmp_path)}
    with open_engine(tiny_checkpoint, **settings) as engine:
        assert engine.get_stats()["tiers"] == {"disk": {"pages": 0, "bytes": 0}}
        text, cached = ask(engine, cache_salt="tenant")
        assert cached == 0
    with open_engine(tiny_checkpoint, **settings) as engine:
        assert engine.get_stats()["tiers"]["disk"]["pages"] == (len(PROMPT) + 3) // 4
        assert ask(engine, cache_salt="another tenant") == (text, 0)
        assert ask(engine, cache_salt="tenant") == (text, (len(PROMPT) - 1) // 4 * 4)
        assert engine.get_stats()["pages"]["restores"] == (len(PROMPT) - 1) // 4


def test_other_arithmetic_finds_nothing(tiny_checkpoint, tmp_path):
    settings = {"disk_cache_bytes": BIG, "cache_dir": str(tmp_path), "kv_dtype": "float32"}
    with open_engine(tiny_checkpoint, dtype="float32", **settings) as engine:
        ask(engine)
    with open_engine(tiny_checkpoint, dtype="bfloat16", **settings) as engine:
        assert ask(engine)[1] == 0


def test_memory_brings_back_what_the_pool_gave_up(tiny_checkpoint):
    with open_engine(tiny_checkpoint, n_tokens=64, host_cache_bytes=BIG) as engine:
        text, _ = ask(engine)
        ask(engine, "x" * 56)  # needs nearly all pages
        assert engine.get_stats()["pages"]["evictions"] > 0
        assert ask(engine) == (text, (len(PROMPT) - 1) // 4 * 4)
        tiers = engine.get_stats()["tiers"]
        assert tiers["host"]["pages"] > 0
        assert 0 < tiers["host"]["bytes"] <= BIG


def test_scores_of_a_prompt_are_never_found_again(tiny_checkpoint, tmp_path):
    """They share no pages: not with other requests, and not with those of another process."""
    settings = {"disk_cache_bytes": BIG, "cache_dir": str(tmp_path)}
    for _ in range(2):
        with open_engine(tiny_checkpoint, **settings) as engine:
            request = GenerationRequest(prompt=PROMPT, max_tokens=1, prompt_logprobs=0)
            scores, *_, finished = engine.submit(request)
            assert (len(scores.entries), finished.usage.cached_tokens) == (len(PROMPT), 0)


def test_warming_up_finds_nothing(tiny_checkpoint, tmp_path):
    """The tokens it runs may be there from a client; a step must not write into a hit."""
    settings = {"disk_cache_bytes": BIG, "cache_dir": str(tmp_path)}
    for _ in range(2):
        with open_engine(tiny_checkpoint, **settings) as engine:
            request = GenerationRequest(prompt_token_ids=[0] * 16, max_tokens=1)
            assert list(engine.submit(request))


def config(folder, **settings):
    return EngineConfig(disk_cache_bytes=BIG, cache_dir=str(folder), **settings)


def test_a_folder_is_one_engines_own(tmp_path, caplog):
    with closing(CacheTiers(config(tmp_path))) as first:
        assert len(first.as_list()) == 1
        assert CacheTiers(config(tmp_path)).as_list() == []
        assert "Serving without the disk tier" in caplog.text
        assert "another process uses it" in caplog.text
    with closing(CacheTiers(config(tmp_path))) as third:
        assert len(third.as_list()) == 1


def test_a_full_disk_only_loses_the_tier(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DiskTier, "_find_files", fail)
    tiers = CacheTiers(config(tmp_path, host_cache_bytes=BIG))
    assert list(tiers.stats()) == ["host"]
    assert "No space left on device" in caplog.text


def test_a_disk_that_fills_up_while_serving(tiny_checkpoint, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    settings = {"disk_cache_bytes": BIG, "cache_dir": str(tmp_path), "n_tokens": 64}
    with open_engine(tiny_checkpoint, **settings) as engine:
        text, _ = ask(engine)
        ask(engine, "x" * 56)
        assert ask(engine)[0] == text
    assert [r.name for r in caplog.records if r.levelname == "WARNING"] == [DiskTier.__module__]


def test_a_folder_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "pages").write_text("not a folder")
    with pytest.raises(ConfigurationError, match=r"cannot use .*pages.*cache_dir"):
        CacheTiers(config(tmp_path))


def test_the_users_cache_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path))
    CacheTiers(EngineConfig(disk_cache_bytes=1)).close()
    assert Path(tmp_path / "pages").is_dir()


@pytest.mark.parametrize("name", ["host_cache_bytes", "disk_cache_bytes"])
def test_sizes_are_checked(name):
    with pytest.raises(ConfigurationError, match=f"{name} must be at least 0, not -1"):
        EngineConfig(**{name: -1})
    with pytest.raises(ConfigurationError, match=f"{name} needs the prefix cache"):
        EngineConfig(prefix_cache=False, **{name: 1})
    with pytest.raises(ConfigurationError, match=f"{name} needs tensor_parallel_size 1"):
        EngineConfig(tensor_parallel_size=2, **{name: 1})
