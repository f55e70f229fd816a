from array import array

import pytest
import torch

from astrai_kvcache.staging import host_view


@pytest.mark.parametrize(("dtype", "code"), [(torch.int32, "i"), (torch.int64, "q")])
def test_what_the_host_writes_is_in_the_tensor(dtype, code):
    tensor = torch.zeros(2, 5, dtype=dtype)
    view = host_view(tensor[1])
    view[1:3] = array(code, [7, -8])
    assert tensor.tolist() == [[0] * 5, [0, 7, -8, 0, 0]]
    assert len(view) == 5
    with pytest.raises(ValueError, match="different"):
        view[1:3] = array(code, [1, 2, 3])


def test_an_empty_tensor_has_an_empty_view():
    assert len(host_view(torch.zeros(0, dtype=torch.int64))) == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4),
        torch.zeros(8, dtype=torch.int64)[::2],
        torch.zeros(4, dtype=torch.int64, device="meta"),
    ],
    ids=["floats", "not contiguous", "not on the CPU"],
)
def test_other_tensors_have_no_view(tensor):
    assert host_view(tensor) is None
