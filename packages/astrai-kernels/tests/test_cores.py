import os

import pytest

from astrai_kernels.cpu import cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretends to be a machine with the given siblings of each hardware thread."""

    def pretend(siblings, limit=None):
        for cpu, names in enumerate(siblings):
            folder = tmp_path / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            if names is not None:
                (folder / "thread_siblings_list").write_text(f"{names}\n")
        if limit is not None:
            (tmp_path / "cpu.max").write_text(limit)
        monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
        monkeypatch.setattr(cores, "_CGROUP_LIMIT", tmp_path / "cpu.max")
        usable = set(range(len(siblings)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable, raising=False)

    return pretend


@pytest.mark.parametrize(
    ("siblings", "limit", "expected"),
    [
        (["0,2", "1,3", "0,2", "1,3"], None, 2),
        (["0", "1", "2"], "max 100000\n", 3),
        (["0", "1", "2"], "200000 100000\n", 2),
        (["0", "1", "2"], "50000 100000\n", 1),
        (["0", "1"], "nonsense", 2),
        ([None, None], None, 2),
    ],
)
def test_cores_count_once_and_limits_count(machine, siblings, limit, expected):
    machine(siblings, limit)
    assert cores.physical_cores() == expected


def test_without_affinity_all_processors_count(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(cores, "_CGROUP_LIMIT", tmp_path / "none")
    assert cores.physical_cores() == 5
