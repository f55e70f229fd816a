import pytest

from astrai_api.cli.bench.series import open_requests, shares, token_rate


def test_shares_rise_to_all_of_them():
    assert shares([3, None, 1, 2, 4]) == [(1, 0), (1, 25), (2, 50), (3, 75), (4, 100)]
    assert shares([]) == []


def test_shares_of_many_values_are_thinned_out_and_keep_their_end():
    points = shares(range(10_000))
    assert len(points) == 201
    assert points[-1] == (9999, 100)


def test_a_long_tail_can_be_cut():
    points = shares([*range(100), 10_000], up_to=0.99)
    assert points[-1] == (99, pytest.approx(100 * 100 / 101))


def test_tokens_are_counted_when_they_came(record, run_of):
    run = run_of(record(first=0.5, gaps=[1.0], tokens=6, total=1.5), seconds=60.0)
    points = token_rate(run)
    assert sum(rate for _, rate in points) == pytest.approx(6)
    assert (points[0][1], points[1][1], points[2][1]) == (3, 3, 0)


def test_open_requests_are_steps(record, run_of):
    run = run_of(record(due=0.0, total=2.0), record(due=1.0, total=0.5))
    steps = open_requests(run)
    assert [count for _, count in steps] == [0, 0, 1, 1, 2, 2, 1, 1, 0]
    assert steps[-1] == (2.0, 0)
