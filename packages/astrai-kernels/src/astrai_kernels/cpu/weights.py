"""Linear weights in the layout the native kernels read: 4-bit, 8-bit and dense.

Quantised weights are GGUF blocks with exactly their values. What they are multiplied with is
rounded too, to 16 bits for each group of 32 inputs, which loses less than float32 arithmetic in
another order; 8 bits are faster and lose about as much as other engines do.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import torch
from torch import Tensor

from astrai_kernels.cpu.library import CpuLibrary, WeightStruct, load_library
from astrai_kernels.errors import ShapeError
from astrai_kernels.ops.activation import Activation
from astrai_kernels.ops.weight import Weight

GROUP_SIZE = 32
"""Inputs that share a scale; ``in_features`` of a quantised weight is a multiple of it."""


class PackedFormat(IntEnum):
    """How a packed weight stores its values; ``Format`` of csrc/weights.h."""

    F32 = 0
    BF16 = 1
    Q4 = 2
    Q8 = 3


class BlockFormat(Enum):
    """GGUF's block formats that can be packed: their number for C, bytes, and packed form."""

    Q4_0 = (1, 18, PackedFormat.Q4)
    Q4_1 = (2, 20, PackedFormat.Q4)
    Q8_0 = (3, 34, PackedFormat.Q8)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of 32 values."""
        return self.value[1]


class _Epilogue(IntEnum):
    """What follows the product; ``Epilogue`` of csrc/linear.cpp."""

    STORE = 0
    ADD = 1
    SWIGLU = 2
    GEGLU = 3


GATES = {"silu": _Epilogue.SWIGLU, "gelu_tanh": _Epilogue.GEGLU}
"""What follows a product with a paired weight."""


@dataclass(frozen=True, eq=False)
class PackedWeight(Weight):
    """A weight for the native kernels; made by `astrai_kernels.cpu.pack`.

    Results do not depend on how many rows are computed together. Inputs of another dtype than
    float32 are converted, and so are the results. No gradients.

    Attributes:
        format: how values are stored.
        shape: ``(out_features, in_features)``.
        tiles: uint8, the packed values.
        bias: ``[out_features]`` float32, or None.
        is_paired: the rows are gate rows, then as many up rows: for `norm_gate_up` only.
        activation_bits: 16, or 8 to round the inputs of 4-bit weights to 8 bits.
        struct: the weight as the kernels are given it; points into ``tiles`` and ``bias``.
    """

    format: PackedFormat
    shape: tuple[int, int]
    tiles: Tensor = field(repr=False)
    bias: Tensor | None = field(default=None, repr=False)
    is_paired: bool = False
    activation_bits: int = 16
    struct: WeightStruct = field(init=False, repr=False)
    _library: CpuLibrary = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.activation_bits not in (8, 16):
            raise ShapeError(f"activation_bits must be 8 or 16, not {self.activation_bits}.")
        struct = WeightStruct(
            format=self.format,
            is_paired=self.is_paired,
            activation_bits=self.activation_bits,
            in_features=self.in_features,
            out_features=self.out_features,
            tiles=self.tiles.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
        )
        object.__setattr__(self, "struct", struct)
        object.__setattr__(self, "_library", load_library())

    @property
    def in_features(self) -> int:
        """Elements of an input row."""
        return self.shape[1]

    @property
    def out_features(self) -> int:
        """Elements of an output row."""
        return self.shape[0]

    def linear(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        return self._apply(x, None, 0.0)

    def norm_linear(self, x: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
        """See `astrai_kernels.ops.norm_linear`."""
        return self._apply(x, norm_weight, eps)

    def likeliest_output(
        self, x: Tensor, norm_weight: Tensor | None, eps: float
    ) -> tuple[list[float], list[int]]:
        """See `astrai_kernels.ops.likeliest_output`."""
        if x.dtype is not torch.float32:
            return super().likeliest_output(x, norm_weight, eps)
        self._refuse_paired()
        if x.dim() != 2:
            raise ShapeError(f"x must be [tokens, {self.in_features}], not {tuple(x.shape)}.")
        x, norm = self._inputs(x, norm_weight)
        best, columns = array("f", bytes(4 * len(x))), array("q", bytes(8 * len(x)))
        self._library.largest_outputs(
            self.struct,
            x.data_ptr(),
            len(x),
            None if norm is None else norm.data_ptr(),
            eps,
            best.buffer_info()[0],
            columns.buffer_info()[0],
        )
        return best.tolist(), columns.tolist()

    def linear_residual(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `astrai_kernels.ops.linear_residual`."""
        self._refuse_paired()
        self._refuse_residual(x, residual)
        total = as_float32(residual)
        self._run(x, None, 0.0, total, _Epilogue.ADD)
        return total.to(residual.dtype)

    def linear_norm_residual(
        self, x: Tensor, norm_weight: Tensor, eps: float, residual: Tensor
    ) -> Tensor:
        """See `astrai_kernels.ops.linear_residual`, of a normalised result."""
        self._refuse_residual(x, residual)
        added, size = as_float32(self.linear(x)), self.out_features
        total, norm, rows = as_float32(residual), _norm(norm_weight, size), added.numel() // size
        self._library.add_normed(
            added.data_ptr(), norm.data_ptr(), eps, rows, size, total.data_ptr()
        )
        return total.to(residual.dtype)

    def norm_gate_up(
        self, x: Tensor, norm_weight: Tensor | None, eps: float, activation: Activation = "silu"
    ) -> Tensor:
        """See `astrai_kernels.ops.norm_gate_up`."""
        if not self.is_paired:
            return super().norm_gate_up(x, norm_weight, eps, activation)
        out = torch.empty(*x.shape[:-1], self.out_features // 2)
        self._run(x, norm_weight, eps, out, GATES[activation])
        return out.to(x.dtype)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows ``[*ids.shape, in_features]`` float32 that ``ids`` name.

        Raises:
            IndexError: an id is negative or names no row.
        """
        if ids.dtype is not torch.int64 or not ids.is_contiguous():
            ids = ids.to(torch.int64).contiguous()
        out = torch.empty(*ids.shape, self.in_features)
        status = self._library.unpack_rows(self.struct, ids.data_ptr(), ids.numel(), out.data_ptr())
        if status:
            raise IndexError(f"An id is not one of the weight's {self.out_features} rows.")
        return out

    def dequantize(self) -> Tensor:
        """All values, ``[out_features, in_features]`` float32."""
        return self.lookup(torch.arange(self.out_features))

    def _apply(self, x: Tensor, norm_weight: Tensor | None, eps: float) -> Tensor:
        self._refuse_paired()
        out = torch.empty(*x.shape[:-1], self.out_features)
        self._run(x, norm_weight, eps, out, _Epilogue.STORE)
        return out if x.dtype is torch.float32 else out.to(x.dtype)

    def _refuse_paired(self) -> None:
        if self.is_paired:
            raise ShapeError("A paired weight serves norm_gate_up only; pack it with paired=False.")

    def _refuse_residual(self, x: Tensor, residual: Tensor) -> None:
        expected = (*x.shape[:-1], self.out_features)
        if residual.shape != expected:
            raise ShapeError(f"residual must be {expected}, not {tuple(residual.shape)}.")

    def _run(
        self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor, epilogue: _Epilogue
    ) -> None:
        x, norm = self._inputs(x, norm)
        self._library.linear(
            self.struct,
            x.data_ptr(),
            x.numel() // self.shape[1],
            None if norm is None else norm.data_ptr(),
            eps,
            out.data_ptr(),
            epilogue,
        )

    def _inputs(self, x: Tensor, norm: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What is multiplied and how it is normed, as the kernels read it."""
        in_features = self.shape[1]
        if x.shape[-1] != in_features or not x.is_cpu:
            raise ShapeError(
                f"x must have {in_features} features on the CPU, "
                f"not shape {tuple(x.shape)} on {x.device}."
            )
        return as_float32(x), None if norm is None else _norm(norm, in_features)


def _norm(weight: Tensor, size: int) -> Tensor:
    if weight.shape != (size,):
        raise ShapeError(f"The norm must be ({size},), not {tuple(weight.shape)}.")
    return as_float32(weight)


def as_float32(x: Tensor) -> Tensor:
    """The tensor as kernels read it: itself, if it is that already."""
    if x.dtype is torch.float32 and x.is_contiguous():
        return x
    return x.to(torch.float32).contiguous()
