"""The position-wise feed-forward network."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.errors import check_sizes
from keras_transformer.layers.base import ConfiguredLayer, Dense, initializer_config


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ConfiguredLayer):
    """Applies two linear maps, with an activation between them, to each position (§3.3).

    Example:

    >>> FeedForward(d_model=64, d_ff=256)(x).shape      # (B, T, 64)

    Args:
        d_model: Width D of input and output.
        d_ff: Width F of the hidden layer between the two linear maps.
        activation: Name of a Keras activation, or `"gelu_approximate"`, which is the GELU of GPT-2.
            Defaults to `"relu"`, as in the paper.
        kernel_initializer: Initializer of both kernels. Defaults to `"glorot_uniform"`.

    Call arguments:
        x: float tensor `(B, T, D)`.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: str = "relu",
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(d_model=d_model, d_ff=d_ff)
        self.supports_masking = True
        self.d_model = d_model
        self.d_ff = d_ff
        self.activation = activation
        self.kernel_initializer = initializer_config(kernel_initializer)
        options = {"kernel_initializer": self.kernel_initializer, "dtype": self.dtype_policy}
        self.inner = Dense(d_ff, activation=_function(activation), name="inner", **options)
        self.outer = Dense(d_model, name="outer", **options)

    def build(self, x_shape: Any) -> None:
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.outer(self.inner(x))


def gelu_approximate(x: Any) -> Any:
    """Returns the approximation of GELU that GPT-2 uses (Hendrycks and Gimpel 2016, §2)."""
    return keras.activations.gelu(x, approximate=True)


def _function(activation: str) -> Callable[[Any], Any]:
    """Returns the activation of this name."""
    if activation == "gelu_approximate":
        return gelu_approximate
    try:
        return keras.activations.get(activation)
    except ValueError:
        raise ValueError(
            '`activation` must be the name of a Keras activation or "gelu_approximate". '
            f"Received: activation={activation!r}"
        ) from None
