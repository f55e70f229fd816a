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

from astrai_kernels.cpu.huge_pages import HugePageArena
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

_DENSE_SOURCE = 0
_memory = HugePageArena()


@dataclass(frozen=True, eq=False)
class PackedWeight(Weight):
    """A weight for the native kernels; made by `pack_blocks` and `pack_dense`.

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


def pack_blocks(
    blocks: Tensor,
    source: BlockFormat,
    *,
    bias: Tensor | None = None,
    paired: bool = False,
    activation_bits: int = 16,
) -> PackedWeight:
    """Pack rows of GGUF blocks, without changing a value.

    Args:
        blocks: uint8 ``[out_features, in_features / 32 * source.block_bytes]``.
        source: the blocks' format.
        bias: ``[out_features]``, or None.
        paired: the rows are gate rows, then as many up rows, for `norm_gate_up`.
        activation_bits: 16, or 8 for faster and less exact products.

    Raises:
        NativeUnavailableError: there are no native kernels here.
        ShapeError: the rows are not whole blocks, or ``activation_bits`` is another number.
    """
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % source.block_bytes:
        raise ShapeError(
            f"{source.name} blocks must be uint8 [rows, a multiple of {source.block_bytes}], "
            f"not {blocks.dtype} {tuple(blocks.shape)}."
        )
    in_features = blocks.shape[1] // source.block_bytes * GROUP_SIZE
    number, _, packed = source.value
    shape = (blocks.shape[0], in_features)
    tiles = _pack(blocks.contiguous(), number, packed, shape, paired)
    return PackedWeight(packed, shape, tiles, _bias(bias, shape), paired, activation_bits)


def pack_dense(
    values: Tensor,
    *,
    bias: Tensor | None = None,
    paired: bool = False,
    packed: PackedFormat = PackedFormat.F32,
) -> PackedWeight:
    """Pack dense values.

    Args:
        values: ``[out_features, in_features]`` of any float dtype.
        bias: ``[out_features]``, or None.
        paired: the rows are gate rows, then as many up rows, for `norm_gate_up`.
        packed: ``F32``, or ``BF16``, which rounds and needs an even ``in_features``.

    Raises:
        NativeUnavailableError: there are no native kernels here.
        ShapeError: the shape does not fit the format.
    """
    if values.dim() != 2 or (packed is PackedFormat.BF16 and values.shape[1] % 2):
        raise ShapeError(
            f"{packed.name} values must be [out_features, in_features], in_features even for "
            f"BF16, not {tuple(values.shape)}."
        )
    if packed not in (PackedFormat.F32, PackedFormat.BF16):
        raise ShapeError(f"Dense values cannot be packed as {packed.name}; quantise them first.")
    shape = (values.shape[0], values.shape[1])
    tiles = _pack(as_float32(values), _DENSE_SOURCE, packed, shape, paired)
    return PackedWeight(packed, shape, tiles, _bias(bias, shape), paired)


def _pack(
    rows: Tensor, source: int, packed: PackedFormat, shape: tuple[int, int], paired: bool
) -> Tensor:
    if paired and shape[0] % 2:
        raise ShapeError(f"A paired weight needs an even number of rows, not {shape[0]}.")
    library = load_library()
    tiles = _memory.zeros(library.packed_bytes(packed, *shape, paired))
    library.pack(source, packed, rows.data_ptr(), *shape, paired, tiles.data_ptr())
    return tiles


def _bias(bias: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if bias is None:
        return None
    if bias.shape != shape[:1]:
        raise ShapeError(f"The bias must be ({shape[0]},), not {tuple(bias.shape)}.")
    return as_float32(bias).clone()


def _norm(weight: Tensor, size: int) -> Tensor:
    if weight.shape != (size,):
        raise ShapeError(f"The norm must be ({size},), not {tuple(weight.shape)}.")
    return as_float32(weight)


def as_float32(x: Tensor) -> Tensor:
    """The tensor as kernels read it: itself, if it is that already."""
    if x.dtype is torch.float32 and x.is_contiguous():
        return x
    return x.to(torch.float32).contiguous()
