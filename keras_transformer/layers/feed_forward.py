"""The position-wise feed-forward network."""

from typing import Any

import keras

from keras_transformer.layers.base import ConfiguredLayer, Dense, dense_options


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ConfiguredLayer):
    """Applies two linear maps, with an activation between them, to each position (§3.3).

    Example:

    >>> FeedForward(d_model=64, d_ff=256)(x).shape      # (B, T, 64)

    Args:
        d_model: Width D of the output. Defaults to None, which means the width of the input.
        d_ff: Width F of the hidden layer between the two linear maps. Defaults to 2048, as in the
            paper.
        activation: Name of a Keras activation, or `"gelu_approximate"`, which is the GELU of GPT-2.
            Defaults to `"relu"`, as in the paper.
        kernel_initializer: Initializer of both kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of both biases. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of both kernels. Defaults to None.
        bias_regularizer: Regularizer of both biases. Defaults to None.

    Call arguments:
        x: float tensor `(B, T, D)`.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(
        self,
        d_model: int | None = None,
        d_ff: int = 2048,
        activation: str = "relu",
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        if d_model is not None:
            self._create_sublayers(d_model)

    def _create_sublayers(self, d_model: int) -> None:
        self.d_model, options = d_model, dense_options(self)
        is_approximate = self.activation == "gelu_approximate"
        activation = gelu_approximate if is_approximate else self.activation
        self.inner = Dense(self.d_ff, activation=activation, name="inner", **options)
        self.outer = Dense(d_model, name="outer", **options)

    def build(self, x_shape: Any) -> None:
        if self.d_model is None:
            self._create_sublayers(x_shape[-1])
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.outer(self.inner(x))


def gelu_approximate(x: Any) -> Any:
    """Returns the approximation of GELU that GPT-2 uses (Hendrycks and Gimpel 2016, §2)."""
    return keras.activations.gelu(x, approximate=True)
