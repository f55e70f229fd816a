"""Memory for weights."""

import torch

from astrai_kernels.cpu.huge_pages import HugePageArena


def test_tensors_are_zero_aligned_and_apart():
    arena = HugePageArena(chunk_bytes=1 << 16)
    tensors = [arena.zeros(size) for size in (1, 64, 65, 16000, 16000, 16000, 16000, 16384)]
    for number, tensor in enumerate(tensors):
        assert tensor.data_ptr() % 64 == 0
        assert not tensor.any()
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))


def test_a_large_tensor_has_a_chunk_of_its_own():
    arena = HugePageArena(chunk_bytes=1 << 16)
    small = arena.zeros(10)
    large = arena.zeros(1 << 20)
    assert large.numel() == 1 << 20
    assert not large.any()
    assert arena.zeros(10).data_ptr() == small.data_ptr() + 64


def test_memory_outlives_its_arena():
    tensor = HugePageArena().zeros(1000).fill_(7)
    assert torch.equal(tensor, torch.full((1000,), 7, dtype=torch.uint8))
