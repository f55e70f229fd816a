import pytest
import torch

from astrai_kvcache import BindWorkspace, InvalidArgumentError


def test_sizes_and_dtypes():
    workspace = BindWorkspace(3, 7, "cpu")
    sizes = {
        name: (tuple(value.shape), value.dtype)
        for name, value in vars(workspace).items()
        if name != "device"
    }
    assert workspace.device == torch.device("cpu")
    assert sizes == {
        "req_pool_indices": ((3,), torch.int64),
        "seq_lens": ((3,), torch.int64),
        "kv_indptr": ((4,), torch.int32),
        "qo_indptr": ((4,), torch.int32),
        "inc": ((4,), torch.int32),
        "out_cache_loc": ((7,), torch.int64),
    }
    assert workspace.inc.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_batch_size", "max_tokens"), [(0, 4), (4, 3)])
def test_sizes_out_of_range_are_refused(max_batch_size, max_tokens):
    with pytest.raises(InvalidArgumentError, match="max_batch_size <= max_tokens"):
        BindWorkspace(max_batch_size, max_tokens, "cpu")
