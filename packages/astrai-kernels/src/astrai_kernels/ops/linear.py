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


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, linear: Weight) -> Tensor:
    """Normalise, then apply a linear layer: the qkv phase.

    Args:
        x: ``[tokens, hidden]``.
        norm_weight: ``[hidden]``, the scale of `rms_norm`; None does not normalise.
        eps: the epsilon of `rms_norm`.
        linear: weight from hidden to out.

    Returns:
        ``[tokens, out]`` of ``x``'s dtype.
    """
    return linear.norm_linear(x, norm_weight, eps)


def likeliest_output(
    x: Tensor, norm_weight: Tensor | None, eps: float, linear: Weight
) -> tuple[list[float], list[int]]:
    """The largest output of `norm_linear` in each row and its column, and nothing of the others.

    A model's head gives a vocabulary of outputs; where only the likeliest token is wanted, a
    native kernel compares them as they are computed, and they need not be written and read.

    Args:
        x: ``[tokens, hidden]``.
        norm_weight: see `norm_linear`.
        eps: the epsilon of `rms_norm`.
        linear: weight from hidden to out.

    Returns:
        What `likeliest` gives for ``norm_linear(x, norm_weight, eps, linear)``.
    """
    return linear.likeliest_output(x, norm_weight, eps)


def linear_residual(
    x: Tensor,
    linear: Weight,
    residual: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Apply a linear layer and add the residual stream: the output and down phases.

    Args:
        x: ``[tokens, in]``.
        linear: weight from in to hidden.
        residual: ``[tokens, hidden]``. It may be updated in place: use only what is returned.
        norm_weight: ``[hidden]``: what is added is normalised first; None adds it as it is.
        eps: the epsilon of that norm.

    Returns:
        ``[tokens, hidden]``: ``residual + linear(x)``, or ``residual + rms_norm(linear(x))``.
    """
    if norm_weight is not None:
        return linear.linear_norm_residual(x, norm_weight, eps, residual)
    return linear.linear_residual(x, residual)
