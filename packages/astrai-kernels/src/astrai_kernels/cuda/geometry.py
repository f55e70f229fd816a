"""How each kernel is launched: threads, shared memory and what grids are made of.

The numbers are those of the kernels' classes in ``csrc``; the emulator's tests compare them.
"""

from dataclasses import dataclass

_WORD_BYTES = 4
_HALF_BYTES = 2


@dataclass(frozen=True)
class BlockShape:
    """One block of a kernel.

    Attributes:
        threads: in the block, all in its first dimension.
        shared_bytes: its dynamic shared memory.
    """

    threads: int
    shared_bytes: int


def rotary_block() -> BlockShape:
    """A block of the rotary kernel; its grid is one block per token."""
    return BlockShape(128, 0)


def decode_block(head_dim: int, group: int) -> BlockShape:
    """A block of the decode kernel.

    Args:
        head_dim: elements of a head.
        group: query heads per K/V head.
    """
    if group <= (2 if head_dim == 96 else 3):
        return BlockShape(128, 4 * (4 * group * (head_dim + 2) + 1))
    warps = 2 if head_dim > 128 else 4
    stages, keys = 3, 16
    return BlockShape(32 * warps, warps * stages * 2 * keys * head_dim * _HALF_BYTES)


def decode_grid(num_kv_heads: int, group: int, batch: int, num_splits: int) -> tuple[int, int, int]:
    """The decode kernel's grid; ``counters`` has its first two dimensions, swapped."""
    head_tiles = -(-group // 16)
    return num_kv_heads * head_tiles, batch, num_splits


def prefill_block(head_dim: int) -> BlockShape:
    """A block of the prefill kernel."""
    keys = 32 if head_dim > 64 else 64
    tiles = prefill_tile_rows(head_dim) + 2 * 2 * keys
    return BlockShape(128, tiles * head_dim * _HALF_BYTES + 2 * keys * _WORD_BYTES)


def prefill_tile_rows(head_dim: int) -> int:
    """Query tokens times group that one block of the prefill kernel serves."""
    return 64 if head_dim > 128 else 128


def prefill_grid(
    num_kv_heads: int, group: int, head_dim: int, tokens: int, batch: int
) -> tuple[int, int, int]:
    """The prefill kernel's grid: enough for any division of the tokens into rows."""
    return num_kv_heads, tokens * group // prefill_tile_rows(head_dim) + batch, 1


def sample_block() -> BlockShape:
    """A block of the sampling kernel; its grid is one block per row."""
    return BlockShape(512, 8 * (2 * 2048 + 2 * 512 + 16 + 3))
