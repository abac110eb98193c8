"""Encoder layer of the convolutional sequence-to-sequence model."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.base import ConfiguredLayer, Dense
from keras_transformer.layers.dropout import Dropout

# The sum of two inputs of equal variance, times this factor, has the variance of one input.
HALF_VARIANCE = math.sqrt(0.5)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionalEncoderLayer(ConfiguredLayer):
    """Applies a convolution and a gated linear unit (GLU), with a scaled residual connection.

    The output at each position depends on the `kernel_size` inputs around the position. Inputs
    beyond the ends of a sentence, and padding, count as zeros. The initial weights keep the
    variance of the input. Unlike the paper, the layer has no weight normalization.

    Example:

    >>> x = ConvolutionalEncoderLayer(d_model=256)(x, padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input and output.
        kernel_size: Number of positions that the convolution reads. Defaults to 3.
        dropout_rate: Dropout rate of the input of the convolution, in [0, 1). Defaults to 0.1.

    Call arguments:
        x: float tensor `(B, S, D)`.
        padding_mask: bool tensor `(B, S)`, True = real token. Defaults to None, which means the
            Keras mask of `x`, if any.

    Returns:
        A float tensor `(B, S, D)`.

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning, §3.2 and §3.5.
    """

    def __init__(
        self, d_model: int, kernel_size: int = 3, dropout_rate: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model = d_model
        self.kernel_size = kernel_size
        self.dropout_rate = dropout_rate
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        # Dropout and the gate make the variance smaller (§3.5).
        initializer = keras.initializers.VarianceScaling(4 * (1 - dropout_rate), "fan_in")
        self.convolution = Dense(
            2 * d_model,
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name="convolution",
        )

    def build(self, x_shape: Any) -> None:
        self.convolution.build((*x_shape[:-1], self.kernel_size * self.d_model))
        self.built = True

    @checkpointable
    def call(self, x: Any, padding_mask: Any = None, mask: Any = None) -> Any:
        padding_mask = mask if padding_mask is None else padding_mask
        real = x if padding_mask is None else ops.where(padding_mask[..., None], x, 0.0)
        after = self.kernel_size // 2
        return (x + self._convolve(real, self.kernel_size - 1 - after, after)) * HALF_VARIANCE

    def _convolve(self, x: Any, before: int, after: int) -> Any:
        """Reads `before` positions before and `after` positions after each position."""
        x = ops.pad(self.dropout(x), ((0, 0), (before, after), (0, 0)))
        last = before + after
        windows = [x[:, start : start - last or None] for start in range(self.kernel_size)]
        return self._gated(ops.concatenate(windows, axis=-1))

    def _gated(self, windows: Any) -> Any:
        """Applies the kernel and the GLU to windows `(B, T, kernel_size * D)`."""
        return ops.glu(self.convolution(windows), axis=-1)
