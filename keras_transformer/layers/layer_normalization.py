"""Layer normalization of each token."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.affine import scale_and_shift


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` whose gain and bias get their gradients as in `Dense`.

    Example:

    >>> LayerNormalization()(x).shape      # that of x

    Args:
        epsilon: Float, added to the variance. Defaults to 1e-6.
        **kwargs: As for `keras.layers.LayerNormalization`. With another `axis` than the last or
            with `rms_scaling`, gradients are as there.

    Call arguments:
        inputs: float tensor `(..., D)`.
        training: Whether there will be gradients. Defaults to False.

    Returns:
        A float tensor like `inputs`.

    Source: Ba, Kiros and Hinton, 2016, Layer Normalization.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        is_of_tokens = self.axis == [-1] and not self.rms_scaling
        if not training or not is_of_tokens or keras.config.backend() != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.layer_normalization(ops.cast(inputs, dtype), epsilon=self.epsilon)
        gamma, beta = (
            None if vector is None else ops.cast(vector, dtype)
            for vector in (self.gamma, self.beta)
        )
        return ops.cast(scale_and_shift(x, gamma, beta, training), self.compute_dtype)
