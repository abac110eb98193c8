"""Scale and shift by one vector for all tokens, with gradients that are matrix products."""

from typing import Any

import keras
from keras import ops

# The fewest rows for which XLA calls its matrix product and not its loop for a vector.
_ROWS = 8


def scale_and_shift(x: Any, scale: Any = None, shift: Any = None, training: bool = False) -> Any:
    """Computes x * scale + shift.

    The gradients of both vectors are sums over all tokens. XLA on TensorFlow takes ten times as
    long for such a sum as for a matrix product with ones, in all a tenth of the training step of a
    base model. So here they are products there; elsewhere the backend's sums.

    Args:
        x: float tensor `(..., D)`.
        scale: float tensor `(D,)`, or None for 1.
        shift: float tensor `(D,)`, or None for 0.
        training: Whether there will be gradients.

    Returns:
        A float tensor `(..., D)`.
    """
    if not training or keras.config.backend() != "tensorflow":
        x = x if scale is None else ops.multiply(x, scale)
        return x if shift is None else ops.add(x, shift)
    # Copies, because a function with its own gradient may not use variables.
    x = x if scale is None else _scale(x, ops.copy(scale))
    return x if shift is None else _shift(x, ops.copy(shift))


@ops.custom_gradient
def _scale(x: Any, scale: Any) -> Any:
    def gradient(*arguments: Any, upstream: Any = None) -> Any:
        upstream = arguments[-1] if upstream is None else upstream
        return upstream * scale, _sum_tokens(upstream * x)

    return x * scale, gradient


@ops.custom_gradient
def _shift(x: Any, shift: Any) -> Any:
    def gradient(*arguments: Any, upstream: Any = None) -> Any:
        upstream = arguments[-1] if upstream is None else upstream
        return upstream, _sum_tokens(upstream)

    return x + shift, gradient


def _sum_tokens(x: Any) -> Any:
    """Sums `(..., D)` over all axes but the last."""
    x = ops.reshape(x, (-1, x.shape[-1]))
    return ops.matmul(ops.ones((_ROWS, ops.shape(x)[0]), x.dtype), x)[0]
