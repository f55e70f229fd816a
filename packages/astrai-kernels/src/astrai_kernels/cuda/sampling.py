"""Drawing tokens on a GPU: what the kernel serves, and its launch."""

import torch
from torch import Tensor

from astrai_kernels.cuda import geometry
from astrai_kernels.cuda.compiler import Specialization
from astrai_kernels.cuda.launcher import Launch, loaded_kernel
from astrai_kernels.cuda.parameters import parameter_structure
from astrai_kernels.cuda.tensors import elsewhere

MAX_VOCAB = 1 << 18
SAMPLE_LAUNCH = Launch(
    Specialization("sample", (("ASTRAI_KERNEL", "ASTRAI_SAMPLE"),)), geometry.sample_block()
)


def unsupported(logits: Tensor) -> str | None:
    """Why the kernel cannot serve logits ``[rows, vocab]``, as a sentence; None when it can."""
    if logits.dtype is not torch.float32 or logits.stride(-1) != 1:
        return f"logits must be float32 and each row contiguous, and are {logits.dtype}."
    if logits.shape[-1] > MAX_VOCAB:
        return f"the vocabulary must be at most {MAX_VOCAB}, and is {logits.shape[-1]}."
    return None


def unsupported_rows(logits: Tensor, rows: Tensor) -> str | None:
    """Why the kernel cannot read such rows of parameters; None when it can."""
    if rows.dtype is not torch.int64 or not rows.is_contiguous():
        return f"the rows' parameters must be contiguous and int64, and are {rows.dtype}."
    return elsewhere(logits, rows)


def run_sample(logits: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Draw a token per row.

    Args:
        logits: ``[rows, vocab]`` float32.
        rows: ``[rows, 7]`` int64: the parameters of each, as `SampleRow` of the sources.
        token_ids: gets ``[rows]`` int64: -1 where a logit is NaN, -2 where all are -inf.

    Raises:
        CudaUnavailableError: the kernel cannot be compiled or loaded.
        KernelLaunchError: the driver refuses.
    """
    loaded_kernel(SAMPLE_LAUNCH, logits.get_device()).run(
        (logits.shape[0], 1, 1),
        parameter_structure("SampleParams")(
            logits=logits.data_ptr(),
            rows=rows.data_ptr(),
            token_ids=token_ids.data_ptr(),
            logits_stride=logits.stride(0),
            vocab=logits.shape[1],
        ),
    )
