import pytest

from astrai_api.cli import machine


def test_facts_name_what_matters():
    facts = dict(machine.machine_facts())
    assert {"system", "python", "astrai", "processor", "cores"} <= facts.keys()
    assert all(facts.values())


@pytest.mark.parametrize(
    ("files", "processor", "memory"),
    [
        (
            {
                "/proc/cpuinfo": "model name\t: A chip\nflags\t\t: fpu avx2 avx512f\n",
                "/proc/meminfo": "MemTotal:  2097152 kB\nMemAvailable:  1048576 kB\n",
            },
            "A chip (avx2, avx512f)",
            "1.0 GiB available of 2.0 GiB",
        ),
        ({}, None, None),
    ],
)
def test_what_the_system_tells_and_what_it_does_not(monkeypatch, files, processor, memory):
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    facts = dict(machine.machine_facts())
    assert processor is None or facts["processor"] == processor
    assert facts.get("memory") == memory


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**40, "1024.0 GiB"),
    ],
)
def test_units(num_bytes, shown):
    assert machine.in_units(num_bytes) == shown
