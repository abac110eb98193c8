"""A linear map, the same at every position."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.affine import scale_and_shift
from keras_transformer._backend.without_tensorflow import without_tensorflow


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose bias gets its gradient from a matrix product on TensorFlow.

    XLA sums a gradient over the tokens far more slowly than it multiplies matrices, see
    `scale_and_shift`. Weights, values and everything else are those of `keras.layers.Dense`.

    Example:

    >>> Dense(64)(x).shape      # (B, T, 64)

    Args:
        units: Width of the output.
        activation: Name of an activation or a function. Defaults to None.
        use_bias: Whether there is a bias. Defaults to True.
        **kwargs: As for `keras.layers.Dense`.

    Call arguments:
        inputs: float tensor `(..., D)`.
        training: Whether there will be gradients. Defaults to False.

    Returns:
        A float tensor `(..., units)`.
    """

    def __init__(
        self, units: int, activation: Any = None, use_bias: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            x = scale_and_shift(x, shift=self.bias, training=training)
        return x if self.activation is None else self.activation(x)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the weights as `keras.layers.Dense` does."""
        super().quantize(mode, type_check=False, config=config)


def int8_matmul(x: Any, kernel: Any, scale: Any) -> Any:
    """Multiplies in 8-bit integers: each row of `x` is quantized by its largest magnitude.

    Args:
        x: float tensor `(..., D)`.
        kernel: int8 tensor `(D, M)`.
        scale: float tensor `(M,)`, how many quantization steps are 1.0 in each column.

    Returns:
        A float tensor `(..., M)` of the dtype of `x`.
    """
    quantized, x_scale = keras.quantizers.abs_max_quantize(x, axis=-1)
    product = ops.cast(ops.matmul(quantized, kernel), x.dtype)
    return product / (ops.cast(x_scale, x.dtype) * ops.cast(scale, x.dtype))


def initializer_config(initializer: Any) -> Any:
    """Returns a name or a config, of which every layer makes its own initializer.

    Layers that share one initializer would draw the same numbers.
    """
    if isinstance(initializer, str | dict):
        return initializer
    with without_tensorflow():
        return keras.initializers.serialize(initializer)
