"""Layer normalization, batch normalization to compare with it, and a registry of names."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import Recomputable
from keras_transformer._backend.operations import one_pass_normalization, scale_and_shift

NORMALIZATIONS: dict[str, type[keras.layers.Layer]] = {}  # classes by their names


def normalization(name: str) -> Callable[[type], type]:
    """Returns a decorator that registers a Keras layer as the `normalization` of this name.

    The constructor must take `epsilon`, `dtype` and `name`. Keras registers the class, too, so that
    saved layers can be loaded.
    """

    def register(norm: type) -> type:
        NORMALIZATIONS[name] = norm
        keras.saving.register_keras_serializable(package="keras_transformer")(norm)
        return norm

    return register


def new_normalization(normalization: str, epsilon: float, **kwargs: Any) -> Any:
    """Creates the layer of a registered name."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"`normalization` must be one of {list(NORMALIZATIONS)}. "
            f"Received: normalization={normalization!r}"
        )
    return NORMALIZATIONS[normalization](epsilon=epsilon, **kwargs)


@normalization("layer")
class LayerNormalization(Recomputable, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` that is faster on TensorFlow and on GPUs of JAX."""

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        is_of_tokens = self.axis == [-1] and not self.rms_scaling
        if is_of_tokens:
            x = one_pass_normalization(inputs, self.gamma, self.beta, self.epsilon)
            if x is not None:
                return ops.cast(x, self.compute_dtype)
        if not training or not is_of_tokens or keras.config.backend() != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.layer_normalization(ops.cast(inputs, dtype), epsilon=self.epsilon)
        gamma, beta = (None if w is None else ops.cast(w, dtype) for w in (self.gamma, self.beta))
        return ops.cast(scale_and_shift(x, gamma, beta, training), self.compute_dtype)


@normalization("batch")
class BatchNormalization(Recomputable, keras.layers.BatchNormalization):
    """Normalizes each feature over all real tokens of a batch, in float32 under every dtype policy.

    Without training, it uses moving averages, so a token's result does not depend on other tokens.
    Unlike `keras.layers.BatchNormalization`, the layer also accepts the tokens `(B * N, D)` of a
    decoding step after it was built for sequences `(B, T, D)`.

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


def normalize(norm: Any, x: Any, padding_mask: Any) -> Any:
    """Applies a layer of one of the `NORMALIZATIONS`."""
    if isinstance(norm, BatchNormalization):
        return norm(x, padding_mask=padding_mask)
    return norm(x)
