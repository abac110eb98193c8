"""What stands around every sublayer: dropout, residual connection, layer normalization."""

from typing import Any

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_transformer")
class ResidualConnection(keras.layers.Layer):
    """Adds a sublayer's output to its input and normalizes: "Add & Norm" in Figure 1 (§3.1, §5.4).

    Post-norm, as in the paper: `LayerNorm(x + Dropout(Sublayer(x)))`. Pre-norm:
    `x + Dropout(Sublayer(LayerNorm(x)))`. What the sublayer gets is `enter(x)`.

    Example:

    >>> residual = ResidualConnection(dropout_rate=0.1)
    >>> x = residual(x, feed_forward(residual.enter(x)))

    Args:
        dropout_rate: Dropout on the sublayer's output, in [0, 1).
        norm_first: True = pre-norm, False = post-norm. Defaults to False.
        norm_epsilon: Added to the variance by the layer normalization. Defaults to 1e-6.

    Call arguments:
        x: float tensor `(B, T, D)`, the sublayer's input before normalization.
        output: float tensor `(B, T, D)`, what the sublayer made of `enter(x)`.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Vaswani et al. 2017, §3.1 and §5.4; pre-norm: Xiong et al. 2020.
    """

    def __init__(
        self,
        dropout_rate: float,
        norm_first: bool = False,
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout_rate = dropout_rate
        self.norm_first = norm_first
        self.norm_epsilon = norm_epsilon
        dtype = self.dtype_policy
        self.dropout = Dropout(dropout_rate, dtype=dtype, name="dropout")
        self.norm = LayerNormalization(norm_epsilon, dtype=dtype, name="norm")

    def build(self, x_shape: Any) -> None:
        self.norm.build(x_shape)
        self.built = True

    def enter(self, x: Any) -> Any:
        """Returns what the sublayer gets: `x`, normalized first under pre-norm."""
        return self.norm(x) if self.norm_first else x

    def call(self, x: Any, output: Any) -> Any:
        total = x + self.dropout(output)
        return total if self.norm_first else self.norm(total)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dropout_rate": self.dropout_rate,
            "norm_first": self.norm_first,
            "norm_epsilon": self.norm_epsilon,
        }
