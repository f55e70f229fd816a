"""What the host knows of the kernels: their blocks, and the layout of their parameters."""

import ctypes

import pytest

from astrai_kernels.cuda import geometry
from astrai_kernels.cuda.attention import HEAD_DIMS
from astrai_kernels.cuda.parameters import parameter_structure

STRUCTURES = ("RotaryParams", "DecodeParams", "PrefillParams", "SampleParams", "SampleRow")


def shape_of(name):
    """What the host says of an instance's blocks."""
    kernel, *rest = name.split("_")
    if kernel == "decode":
        return geometry.decode_block(int(rest[1]), int(rest[2]))
    if kernel == "prefill":
        return geometry.prefill_block(int(rest[1]))
    return geometry.rotary_block() if kernel == "rotary" else geometry.sample_block()


@pytest.mark.parametrize(
    "name",
    [
        "rotary_bf16_64",
        *(
            f"decode_{rest}"
            for rest in ("bf16_64_3", "f16_96_1", "f16_256_2", "bf16_128_4", "bf16_96_5")
        ),
        *(f"prefill_{rest}" for rest in ("bf16_64_3", "f16_96_1", "bf16_128_4", "f16_256_2")),
        "sample",
    ],
)
def test_the_host_knows_each_kernels_block(emulator, name):
    instance = emulator.instance(name)
    assert shape_of(name) == geometry.BlockShape(instance.threads, instance.shared_bytes)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_blocks_fit_every_gpu(head_dim):
    """Those of compute capability 8.6, 8.9 and 12.0 have the least shared memory for a block."""
    blocks = [geometry.decode_block(head_dim, group) for group in (1, 2, 3, 4, 16)]
    blocks += geometry.prefill_block(head_dim), geometry.sample_block()
    assert max(block.shared_bytes for block in blocks) <= 99 * 1024


def test_the_host_lays_out_parameters_as_the_compiler_does(emulator):
    sizes = [ctypes.sizeof(parameter_structure(name)) for name in STRUCTURES]
    assert sizes == list(emulator.array("parameter_bytes", len(STRUCTURES)))


def test_unknown_structures_are_key_errors():
    with pytest.raises(KeyError):
        parameter_structure("NoSuchParams")
