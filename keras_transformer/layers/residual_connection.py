"""Dropout, residual connection and layer or batch normalization around a sublayer."""

from typing import Any

import keras

from keras_transformer.layers.base import ConfiguredLayer, LayerNormalization
from keras_transformer.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchNormalization(keras.layers.BatchNormalization):
    """Normalizes each feature over all real tokens of a batch, in float32 under every dtype policy.

    This layer replaces layer normalization to compare the two. In training, it uses the mean and
    the variance of the batch, and updates their moving averages. Otherwise, it uses the moving
    averages, so a token's result does not depend on other tokens. Unlike
    `keras.layers.BatchNormalization`, the layer also accepts the tokens `(B * N, D)` of a decoding
    step after it was built for sequences `(B, T, D)`.

    Example:

    >>> y = BatchNormalization()(x, padding_mask=ids != 0, training=True)

    Args:
        epsilon: Constant that is added to the variance. Defaults to 1e-6.
        **kwargs: Other arguments of `keras.layers.BatchNormalization`.

    Call arguments:
        inputs: float tensor `(B, T, D)`, or `(B * N, D)` without training.
        padding_mask: bool tensor `(B, T)`, True = real token. Defaults to None, which means the
            Keras mask of `inputs`, if any.
        training: Whether to use the statistics of the batch. Defaults to False.

    Returns:
        A float tensor of the shape of `inputs`.

    Source: Ioffe and Szegedy 2015, "Batch Normalization".
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.input_spec = None

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        training: bool = False,
        mask: Any = None,
        inputs_mask: Any = None,
    ) -> Any:
        # Keras sets the last two arguments, and hands on only masks with these names.
        if padding_mask is None:
            padding_mask = mask if inputs_mask is None else inputs_mask
        return super().call(inputs, training=training, mask=padding_mask)


NORMALIZATIONS = {"layer": LayerNormalization, "batch": BatchNormalization}


def new_norm(normalization: str, epsilon: float, **kwargs: Any) -> Any:
    """Returns the layer that `normalization` names."""
    return NORMALIZATIONS[normalization](epsilon, **kwargs)


def normalize(norm: Any, x: Any, padding_mask: Any) -> Any:
    """Applies a layer that `new_norm` returned."""
    if isinstance(norm, BatchNormalization):
        return norm(x, padding_mask=padding_mask)
    return norm(x)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ResidualConnection(ConfiguredLayer):
    """Computes "Add & Norm" of Figure 1: residual connection, dropout and layer norm (§3.1, §5.4).

    Post-norm computes `LayerNorm(x + Dropout(Sublayer(x)))`, as in the paper. Pre-norm computes
    `x + Dropout(Sublayer(LayerNorm(x)))`. `enter(x)` returns the sublayer's input.

    Example:

    >>> residual = ResidualConnection(dropout_rate=0.1)
    >>> x = residual(x, feed_forward(residual.enter(x)))

    Args:
        dropout_rate: Rate of the dropout on the sublayer's output, in [0, 1).
        norm_first: True = pre-norm, False = post-norm. Defaults to False.
        norm_epsilon: Constant that the normalization adds to the variance. Defaults to 1e-6.
        normalization: `"layer"`, or `"batch"` (see `BatchNormalization`). Defaults to `"layer"`, as
            in the paper.

    Call arguments:
        x: float tensor `(B, T, D)`, the sublayer's input before normalization.
        output: float tensor `(B, T, D)`, the sublayer's output for the input `enter(x)`.
        padding_mask: bool tensor `(B, T)`, True = real token. Only batch normalization uses it.
            Defaults to None, which means the Keras mask of `x`, if any.
        training: Whether to apply dropout, and batch statistics. Defaults to False.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Vaswani et al. 2017, §3.1 and §5.4; for pre-norm, Xiong et al. 2020.
    """

    def __init__(
        self,
        dropout_rate: float,
        norm_first: bool = False,
        norm_epsilon: float = 1e-6,
        normalization: str = "layer",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.norm = new_norm(normalization, norm_epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Any) -> None:
        self.norm.build(x_shape)
        self.built = True

    def enter(self, x: Any, padding_mask: Any = None) -> Any:
        """Returns the sublayer's input: normalized `x` for pre-norm, `x` itself for post-norm."""
        return normalize(self.norm, x, padding_mask) if self.norm_first else x

    def call(
        self,
        x: Any,
        output: Any,
        padding_mask: Any = None,
        training: bool = False,
        x_mask: Any = None,
    ) -> Any:
        # Keras sets `x_mask`.
        # On PyTorch, a Keras layer that does nothing takes as long as a small matrix product.
        total = x + (self.dropout(output, training=True) if training else output)
        if self.norm_first:
            return total
        return normalize(self.norm, total, x_mask if padding_mask is None else padding_mask)
