import pytest
import torch

from astrai_kvcache import KVStorage


@pytest.fixture
def storage():
    storage = KVStorage(8, 2, 3, 4, torch.device("cpu"), torch.float16)
    storage.k_buffer.zero_()
    storage.v_buffer.zero_()
    return storage


def test_layout(storage):
    assert storage.size == 8
    assert storage.k_buffer.shape == storage.v_buffer.shape == (2, 8, 3, 4)
    assert storage.k_buffer.dtype == torch.float16


def test_layers_are_views(storage):
    storage.get_key_buffer(1)[3] = 1
    storage.get_value_buffer(0)[2] = 2
    assert storage.k_buffer.sum() == 12
    assert storage.v_buffer[0, 2].sum() == 24


@pytest.mark.parametrize("loc", [torch.tensor([5, 1]), torch.tensor([[5], [1]], dtype=torch.int32)])
def test_kv_are_stored_where_named_and_converted(storage, loc):
    k = torch.arange(24, dtype=torch.float32).view(*loc.shape, 3, 4)
    storage.set_kv_buffer(1, loc, k, -k)
    assert torch.equal(storage.k_buffer[1, [5, 1]], k.view(2, 3, 4).half())
    assert torch.equal(storage.v_buffer[1, [5, 1]], -k.view(2, 3, 4).half())
    assert not storage.k_buffer[0].any()
    assert not storage.k_buffer[1, [0, 2, 3, 4, 6, 7]].any()


def test_slots_are_copied_in_all_layers(storage):
    storage.k_buffer.copy_(torch.arange(8).view(1, 8, 1, 1).expand(2, 8, 3, 4))
    storage.v_buffer.copy_(-storage.k_buffer)
    storage.copy_slots(1, 5, 2)
    assert storage.k_buffer[:, :, 0, 0].tolist() == [[0, 1, 2, 3, 4, 1, 2, 7]] * 2
    assert torch.equal(storage.v_buffer, -storage.k_buffer)


def test_storage_made_in_inference_mode_can_be_written_outside():
    with torch.inference_mode():
        storage = KVStorage(2, 1, 1, 1, torch.device("cpu"), torch.float32)
    ones = torch.ones(2, 1, 1)
    storage.set_kv_buffer(0, torch.tensor([0, 1]), ones, ones)
    assert storage.k_buffer.sum() == 2


def test_slots_are_read_as_copies_and_written_back(storage):
    storage.k_buffer.copy_(torch.arange(2 * 8 * 12).view(2, 8, 3, 4))
    storage.v_buffer.copy_(-storage.k_buffer)
    keys, values = storage.read(2, 3)
    assert torch.equal(keys, storage.k_buffer[:, 2:5])
    assert torch.equal(values, storage.v_buffer[:, 2:5])
    assert keys.is_contiguous()
    storage.k_buffer.zero_()
    storage.v_buffer.zero_()
    storage.write(5, keys, values)
    assert torch.equal(storage.k_buffer[:, 5:8], keys)
    assert torch.equal(storage.v_buffer[:, 5:8], values)
    assert not storage.k_buffer[:, :5].any()
    assert keys.any()
