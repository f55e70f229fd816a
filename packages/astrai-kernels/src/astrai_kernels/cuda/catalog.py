"""The kernels that are compiled ahead of time: those of the models people run."""

from collections.abc import Iterable

import torch

from astrai_kernels.cuda.attention import HEAD_DIMS, decode_launch, prefill_launch
from astrai_kernels.cuda.compiler import Specialization, Target, compiled_kernel
from astrai_kernels.cuda.rotary import rotary_launch
from astrai_kernels.cuda.sampling import SAMPLE_LAUNCH

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Query heads per K/V head of most models; other groups are compiled where they are met."""


def specializations(
    dtypes: Iterable[torch.dtype] = (torch.bfloat16,),
    head_dims: Iterable[int] = HEAD_DIMS,
    groups: Iterable[int] = GROUPS,
) -> list[Specialization]:
    """The kernels of a choice of models, each once.

    Args:
        dtypes: of weights, activations and cache.
        head_dims: elements of a head.
        groups: query heads per K/V head.
    """
    shapes = [(dtype, head_dim) for dtype in dtypes for head_dim in head_dims]
    launches = [SAMPLE_LAUNCH, *(rotary_launch(*shape) for shape in shapes)]
    for shape in shapes:
        for group in groups:
            launches += decode_launch(*shape, group), prefill_launch(*shape, group)
    return [launch.kernel for launch in launches]


def build(arch: int, kernels: Iterable[Specialization]) -> int:
    """Compile kernels into the cache; those that are there already cost nothing.

    Args:
        arch: compute capability, ten times; no GPU is needed.
        kernels: which.

    Returns:
        How many there are.

    Raises:
        CudaUnavailableError: NVRTC is missing, or refuses one.
    """
    return sum(1 for kernel in kernels if compiled_kernel(kernel, Target(arch)))
