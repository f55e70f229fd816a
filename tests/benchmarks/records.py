"""What the benchmarks find, one line of JSON each: long runs are made of short ones."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """One measurement.

    Attributes:
        system: what was measured, such as ``astrai`` or ``llama.cpp Q4_0``.
        work: what it did, such as ``decode 8``.
        value: how fast, or how much.
        unit: of the value.
    """

    system: str
    work: str
    value: float
    unit: str


def append(path: Path, records: Iterable[Record]) -> None:
    """Add measurements to a file, and print them."""
    with open(path, "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(asdict(record)) + "\n")
            print(f"{record.system:18} {record.work:24} {record.value:10.2f} {record.unit}")


def read(path: Path) -> list[Record]:
    """All measurements of a file."""
    with open(path, encoding="utf-8") as file:
        return [Record(**json.loads(line)) for line in file]
