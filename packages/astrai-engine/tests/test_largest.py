import math

import pytest
import torch

from astrai_engine.sampling.largest import largest


def random_logits(rows, vocab, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocab", [128 * 200, 128 * 384, 1000, 128])
@pytest.mark.parametrize("k", [1, 2, 50, 96])
def test_it_equals_topk(vocab, k):
    logits = random_logits(5, vocab)
    values, ids = largest(logits, k)
    expected = logits.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


def test_all_of_them_may_lie_in_one_block():
    logits = random_logits(2, 128 * 300)
    logits[:, 640:690] += 100
    values, ids = largest(logits, 50)
    assert torch.equal(values, logits.topk(50).values)
    assert set(ids[0].tolist()) == set(range(640, 690))


def test_of_equal_values_the_first_is_the_largest():
    logits = torch.zeros(1, 128 * 64)
    assert largest(logits, 1)[1].item() == 0
    logits[0, [700, 701, 5000]] = 1.0
    assert largest(logits, 1)[1].item() == 700


def test_nan_and_infinity_are_not_overlooked():
    logits = random_logits(3, 128 * 200)
    logits[0, 20_000] = math.nan
    logits[1, 20_001] = math.inf
    logits[2] = -math.inf
    for k in (1, 20):
        values, ids = largest(logits, k)
        assert math.isnan(values[0, 0])
        assert (values[1, 0], ids[1, 0]) == (math.inf, 20_001)
        assert values[2, 0] == -math.inf
