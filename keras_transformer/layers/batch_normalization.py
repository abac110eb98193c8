"""Batch normalization over the real tokens of a batch."""

from typing import Any

import keras


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
