"""The feed-forward network, and dropout, residual connection and normalization of each sublayer."""

from typing import Any

import keras

from keras_transformer._backend.types import Mask, Rule, Shape, Tensor
from keras_transformer.layers.base import (
    ConfiguredLayer,
    Dense,
    Registry,
    dense_options,
    given_mask,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import NORMALIZATIONS, normalize

# A class is a Keras layer with the arguments `d_model`, `d_ff`, `name`, and those that
# `dense_options` returns. In a `LanguageModel`, it has a last linear map `outer`.
FEED_FORWARDS = Registry("activation")
feed_forward = FEED_FORWARDS.register


def new_feed_forward(activation: Any, **options: Any) -> Any:
    """Creates the network of a registered name, or a `FeedForward` with an object of Keras."""
    if isinstance(activation, str):
        return FEED_FORWARDS.new(activation, **options)
    return FeedForward(activation=activation, **options)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ConfiguredLayer):
    """Applies two linear maps, with an activation between them, to each position (§3.3).

    Example:

    >>> FeedForward(d_model=64, d_ff=256)(x).shape      # (B, T, 64)

    Args:
        d_model: Width D of the output. Defaults to None, which means the width of the input.
        d_ff: Width F between the two linear maps. Defaults to 2048, as in the paper.
        activation: Name of a Keras activation, or `"gelu_approximate"`, which is the GELU of GPT-2.
            Defaults to `"relu"`, as in the paper.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer: Those of both
            linear maps. Default to `"glorot_uniform"`, `"zeros"`, None and None.
        use_bias: Whether the linear maps have biases. Defaults to True.

    The layer maps a float tensor `(B, T, D)` to another one.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(
        self,
        d_model: int | None = None,
        d_ff: int = 2048,
        activation: str = "relu",
        kernel_initializer: Rule = "glorot_uniform",
        bias_initializer: Rule = "zeros",
        kernel_regularizer: Rule = None,
        bias_regularizer: Rule = None,
        use_bias: bool = True,
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

    def build(self, x_shape: Shape) -> None:
        if self.d_model is None:
            self._create_sublayers(x_shape[-1])
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))

    def call(self, x: Tensor) -> Any:
        return self.outer(self.inner(x))


# The names of Keras's activations, and one more.
_NAMES = {"gelu_approximate", *dir(keras.activations)} - {"get", "serialize", "deserialize"}
FEED_FORWARDS.update({x: (FeedForward, {"activation": x}) for x in sorted(_NAMES) if x[0] != "_"})


@feed_forward("swiglu", activation="silu")
@feed_forward("geglu", activation="gelu")
class GatedFeedForward(FeedForward):
    """Computes `outer(activation(inner(x)) * gate(x))` at each position.

    The names `"swiglu"` and `"geglu"` choose it, with the activations `"silu"` and `"gelu"`. It has
    three linear maps, so 2/3 of the `d_ff` of a `FeedForward` gives as many parameters.

    Example:

    >>> GatedFeedForward(d_model=64, d_ff=168, activation="silu")(x).shape      # (B, T, 64)

    For the arguments, see `FeedForward`.

    Source: Shazeer 2020, GLU Variants Improve Transformer, eq. 6.
    """

    def _create_sublayers(self, d_model: int) -> None:
        super()._create_sublayers(d_model)
        self.gate = Dense(self.d_ff, name="gate", **dense_options(self))

    def build(self, x_shape: Shape) -> None:
        super().build(x_shape)
        self.gate.build(x_shape)

    def call(self, x: Tensor) -> Any:
        return self.outer(self.inner(x) * self.gate(x))


@keras.saving.register_keras_serializable(package="keras_transformer")
def gelu_approximate(x: Tensor) -> Any:
    """Returns the approximation of GELU that GPT-2 uses (Hendrycks and Gimpel 2016, §2)."""
    return keras.activations.gelu(x, approximate=True)


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
        normalization: `"layer"`, `"rms"` (see `RMSNormalization`), or the name of a class that
            `normalization` in layers/normalization.py registers. Defaults to `"layer"`.

    Call arguments:
        x: float tensor `(B, T, D)`, the sublayer's input before normalization.
        output: float tensor `(B, T, D)`, the sublayer's output for the input `enter(x)`.
        padding_mask: bool tensor `(B, T)`, True = real token, for norms that take it. Defaults
            to None, which means the Keras mask of `x`, if any.
        training: Whether to apply dropout. Defaults to False.

    The result is a float tensor `(B, T, D)`.

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
        options = {"epsilon": norm_epsilon, "dtype": self.dtype_policy, "name": "norm"}
        self.norm = NORMALIZATIONS.new(normalization, **options)

    def build(self, x_shape: Shape) -> None:
        self.norm.build(x_shape)

    def enter(self, x: Tensor, padding_mask: Mask | None = None) -> Any:
        """Returns the sublayer's input: normalized `x` for pre-norm, `x` itself for post-norm."""
        return normalize(self.norm, x, padding_mask) if self.norm_first else x

    def call(
        self,
        x: Tensor,
        output: Tensor,
        padding_mask: Mask | None = None,
        training: bool = False,
        x_mask: Mask | None = None,
    ) -> Any:
        # A layer that does nothing takes as long as a small matrix product.
        total = x + (self.dropout(output, training=True) if training else output)
        if self.norm_first:
            return total
        return normalize(self.norm, total, given_mask(padding_mask, x_mask))
