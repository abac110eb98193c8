"""A recurrent layer that Marian's student models have instead of self-attention in the decoder."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.types import Rule, Shape, Size, Tensor
from keras_transformer.layers.base import ConfiguredLayer, Dense, dense_options


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(ConfiguredLayer):
    """The Simpler Simple Recurrent Unit: each position sees itself and the earlier ones.

    It computes `c_t = f_t * c_{t-1} + (1 - f_t) * W x_t` with the forget gate
    `f_t = sigmoid(W_f x_t + b_f)` and `c_0 = 0`, and returns `relu(c_t)`. A step of decoding takes
    the same time at every position, and its cache is one vector.

    Example:

    >>> SSRU()(x).shape                                     # (B, T, D), that of `x`
    >>> output, state = SSRU().step(x[:, 0], state)         # (B, D) and (B, D)

    Args:
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer: Those of both
            linear maps. Default to `"glorot_uniform"`, `"zeros"`, None and None.
        use_bias: Whether the forget gate has a bias. Defaults to True.

    The layer maps a float tensor `(B, T, D)` to another one. A padding mask would change nothing at
    real positions if the padding is at the end.

    Source: Kim et al. 2019, From Research to Production and Back, eq. 3 to 5.
    """

    def __init__(
        self,
        kernel_initializer: Rule = "glorot_uniform",
        bias_initializer: Rule = "zeros",
        kernel_regularizer: Rule = None,
        bias_regularizer: Rule = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())

    def build(self, x_shape: Shape) -> None:
        options = dense_options(self)
        self.forget_gate = Dense(x_shape[-1], name="forget_gate", **options)
        self.candidate = Dense(x_shape[-1], name="candidate", **{**options, "use_bias": False})
        self.forget_gate.build(x_shape)
        self.candidate.build(x_shape)
        self.built = True

    def _output_spec(self, x: Tensor) -> Any:
        return keras.KerasTensor(x.shape, self.compute_dtype)

    def call(self, x: Tensor) -> Any:
        return self._output(linear_recurrence(*self._terms(x)))

    def step(self, x: Tensor, state: Tensor) -> tuple[Any, Any]:
        """Computes one position, `x` `(B, D)`.

        Args:
            x: float tensor `(B, D)`.
            state: float32 tensor `(B, D)`, c of the position before, or zeros.

        Returns:
            The output `(B, D)`, and the state of this position.
        """
        forget, added = self._terms(x)
        state = forget * state + added
        return self._output(state), state

    def _terms(self, x: Tensor) -> tuple[Any, Any]:
        """Returns f and (1 - f) * W x. Sums over many positions need float32."""
        forget = ops.sigmoid(ops.cast(self.forget_gate(x), "float32"))
        return forget, (1 - forget) * ops.cast(self.candidate(x), "float32")

    def _output(self, state: Tensor) -> Any:
        return ops.cast(ops.relu(state), self.compute_dtype)


def linear_recurrence(factors: Tensor, terms: Tensor) -> Any:
    """Returns c with `c_t = factors_t * c_{t-1} + terms_t` and `c_0 = 0`; all are `(B, T, D)`.

    It takes log2(T) operations on whole tensors, as `keras.ops.associative_scan` does, which needs
    a length that is known when TensorFlow traces it.
    """
    positions = ops.arange(ops.shape(terms)[1])[:, None]

    def double(distance: Size, factors: Tensor, terms: Tensor) -> tuple[Any, Any, Any]:
        """Makes each position the sum of twice as many terms."""
        is_there = positions >= distance
        earlier = ops.where(is_there, ops.roll(terms, distance, axis=1), 0.0)
        product = ops.where(is_there, ops.roll(factors, distance, axis=1), 1.0)
        return distance * 2, factors * product, terms + factors * earlier

    state: tuple[Any, Any, Any] = 1, factors, terms
    if terms.shape[1] is None:
        length = ops.shape(terms)[1]
        return ops.while_loop(lambda i, *_: i < length, double, state, maximum_iterations=31)[2]
    while state[0] < terms.shape[1]:
        state = double(*state)
    return state[2]
