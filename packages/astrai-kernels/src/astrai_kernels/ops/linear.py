"""Linear phases of a decoder layer."""

from torch import Tensor

from astrai_kernels.ops.weight import Weight


def linear(x: Tensor, weight: Weight) -> Tensor:
    """Apply a linear layer.

    Args:
        x: ``[..., in_features]``.
        weight: the layer's weight, in any format.

    Returns:
        ``[..., out_features]`` of ``x``'s dtype.
    """
    return weight.linear(x)


def norm_linear(x: Tensor, norm_weight: Tensor, eps: float, linear: Weight) -> Tensor:
    """Normalise, then apply a linear layer: the qkv phase.

    Args:
        x: ``[tokens, hidden]``.
        norm_weight: ``[hidden]``, the scale of `rms_norm`.
        eps: the epsilon of `rms_norm`.
        linear: weight from hidden to out.

    Returns:
        ``[tokens, out]`` of ``x``'s dtype.
    """
    return linear.norm_linear(x, norm_weight, eps)


def linear_residual(x: Tensor, linear: Weight, residual: Tensor) -> Tensor:
    """Apply a linear layer and add the residual stream: the output and down phases.

    Args:
        x: ``[tokens, in]``.
        linear: weight from in to hidden.
        residual: ``[tokens, hidden]``. It may be updated in place: use only what is returned.

    Returns:
        ``[tokens, hidden]``: ``residual + linear(x)``.
    """
    return linear.linear_residual(x, residual)
