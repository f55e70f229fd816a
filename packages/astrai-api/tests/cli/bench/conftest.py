"""Runs of benchmarks, made of numbers."""

import pytest

from astrai_api.cli.bench.records import BenchRun, Limits, RequestRecord


@pytest.fixture
def record():
    def make(due=0.0, first=0.1, gaps=(0.1, 0.2), total=0.5, tokens=3, error=None, cached=0):
        return RequestRecord(due, first, list(gaps), total, 10, cached, tokens, error)

    return make


@pytest.fixture
def run_of():
    def make(*records, name="run", seconds=2.0, limits=None):
        target = {"place": "http://x", "model": "m"}
        load = {"description": "by hand"}
        return BenchRun(name, target, load, limits or Limits(), seconds, list(records))

    return make
