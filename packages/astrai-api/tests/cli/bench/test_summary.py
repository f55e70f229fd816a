import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_api.cli.bench.records import Limits
from astrai_api.cli.bench.summary import Distribution, percentile, summarise


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_are_ordered_and_within_the_values(values, one, other):
    values.sort()
    low, high = sorted((one, other))
    below, above = percentile(values, low), percentile(values, high)
    slack = 1e-6
    assert values[0] - slack <= below <= above + slack <= values[-1] + 2 * slack


def test_percentiles_are_linear_between_neighbours():
    assert percentile([0, 10, 20, 30], 0.5) == 15
    assert percentile([0, 10], 0.99) == pytest.approx(9.9)
    assert percentile([4], 0.9) == 4


def test_a_distribution():
    found = Distribution.of([4, None, 2, 3, 1])
    assert (found.mean, found.p50, found.max) == (2.5, 2.5, 4)
    assert Distribution.of([None]) == Distribution()


def test_a_summary(record, run_of):
    run = run_of(
        record(first=0.1, total=0.5, tokens=5, gaps=[0.1], cached=5),
        record(first=0.3, total=0.9, tokens=3, gaps=[0.2, 0.4]),
        record(first=0.1, total=0.2, error="No."),
        limits=Limits(first=0.2),
    )
    summary = summarise(run)
    assert (summary.completed, summary.failed) == (2, 1)
    assert summary.requests_per_second == 1
    assert summary.output_tokens_per_second == 4
    assert summary.cached_share == 0.25
    assert summary.first.p50 == pytest.approx(0.2)
    assert summary.gap.max == 0.4
    assert summary.per_token.mean == pytest.approx((0.1 + 0.3) / 2)
    assert summary.good_share == pytest.approx(1 / 3)
    assert summary.goodput == 0.5


def test_nothing_at_all(run_of):
    summary = summarise(run_of(seconds=0.0))
    assert (summary.completed, summary.good_share, summary.first.p99) == (0, 0, 0)
